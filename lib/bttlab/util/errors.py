"""The one error type that users see as a single line."""

LONGEST = 2000  # characters of a message


class BttlabError(Exception):
    """Something the user can put right: the message names the value, the rule it broke and the way out.

    The command line prints the message alone and ends with exit code 2. It is one line of a readable length, whatever a
    file holds that the message quotes.
    """

    def __str__(self) -> str:
        text = super().__str__().replace("\n", " ")
        return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} … {text[-LONGEST // 2 :]}"
