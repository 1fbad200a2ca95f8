"""The one error type that users see as a single line."""


class BttlabError(Exception):
    """Something the user can put right: the message names the value, the rule it broke and the way out.

    The command line prints the message alone and ends with exit code 2.
    """
