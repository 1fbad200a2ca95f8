"""The one error type that users see as a single line."""

LONGEST = 2000  # characters of a message


class BttlabError(Exception):
    """Something the user can put right: the message names the value, the rule it broke and the way out.

    The command line prints the message alone and ends with exit code 2. Whatever a file holds that the message quotes,
    it is one line of a readable length, without characters that a terminal would act upon.
    """

    def __str__(self) -> str:
        text = super().__str__().replace("\n", " ")
        if len(text) > LONGEST:
            text = f"{text[: LONGEST // 2]} … {text[-LONGEST // 2 :]}"
        return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
