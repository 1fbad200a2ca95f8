"""What a program cannot be: one line with the value, the rule and the way out."""

from bttlab.errors import BttlabError


class ProgramError(BttlabError, ValueError):
    """A model that the machine does not hold, or a program that breaks a rule of docs/processor.md."""
