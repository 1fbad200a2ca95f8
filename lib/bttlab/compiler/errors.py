"""Errors of the compiler: one line with the value, the rule and the way out."""

from bttlab.errors import BttlabError


class ProgramError(BttlabError, ValueError):
    """A model that the machine does not hold, or a program that breaks a rule of docs/processor.md."""


class DoesNotFit(ProgramError):
    """A model that the machine has no room for.

    Parameters
    ----------
    what : str
        What of it, and where.
    choose : str
        What may make it fit; `fitting.what_fits` knows better where a whole model is asked for.
    """

    def __init__(self, what: str, choose: str):
        super().__init__(f"{what}: choose {choose}")
        self.what = what
