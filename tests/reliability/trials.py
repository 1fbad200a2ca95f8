"""Which trials there are."""

from collections.abc import Callable
from dataclasses import dataclass

from reliability import crash_resume
from reliability.outcome import Outcome


@dataclass(frozen=True)
class Trial:
    """A trial and its size.

    Attributes
    ----------
    run : callable
        Takes a count and returns an Outcome.
    full : int
        The count for `make reliability`.
    small : int
        The count for `make test`: a few seconds.
    """

    run: Callable[[int], Outcome]
    full: int
    small: int


TRIALS = {
    "crash_resume": Trial(crash_resume.trial, full=100, small=2),
}
