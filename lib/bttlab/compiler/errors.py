"""Errors of the compiler. A message is one line with the value, the rule and the way out."""

from bttlab.util.errors import BttlabError


class ProgramError(BttlabError, ValueError):
    """A model that does not fit the machine, or a program that breaks a rule of docs/processor.md."""


SMALLER_MODEL = "fewer encoders, a shorter sequence, smaller ranks or a smaller vocabulary"


def with_space(choose: str, fits: str) -> str:
    """Return what to choose, and what there is space for if that is known."""
    return f"{choose}; there is space for {fits}" if fits else choose


class DoesNotFit(ProgramError):
    """A model that takes more memory than the machine has.

    `share`: the part of a matrix of activations that the banks have space for, if that is what does not fit; else 1.
    """

    def __init__(self, what: str, choose: str, share: float = 1.0):
        super().__init__(f"{what}: choose {choose}")
        self.what, self.choose, self.share = what, choose, share


class TablesFull(ProgramError):
    """Functions whose tables take more entries than the vector unit has."""


class RowsDoNotFit(DoesNotFit):
    """Rows of a table that a sample's record has no space for."""
