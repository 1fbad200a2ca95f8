"""The one error type that users see as a single line."""

from bttlab.util.terminal import printable

LONGEST = 2000  # characters of a message


class BttlabError(Exception):
    """Something the user can put right: the message names the value, the rule it broke and the way out.

    The command line prints the message alone and ends with exit code 2. Whatever a file holds that the message quotes,
    it is one line of a readable length, without characters that a terminal would act upon.
    """

    def __str__(self) -> str:
        return _shortened(printable(_shortened(super().__str__().replace("\n", " "))))


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} … {text[-LONGEST // 2 :]}"
