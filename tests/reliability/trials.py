"""List of the trials."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from reliability import crash_resume, day, hostile_files, interrupts, long_runs, native_code, notebooks
from reliability.hostile_targets import TARGETS
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
        The count for `make test-all`; 0 for a trial that takes long in any case.
    """

    run: Callable[[int], Outcome]
    full: int
    small: int


TRIALS = {
    "crash_resume": Trial(crash_resume.trial, full=600, small=0),
    **{f"hostile_{name}": Trial(partial(hostile_files.trial, name), full=100_000, small=300) for name in TARGETS},
    "native_port": Trial(native_code.fuzz, full=100_000, small=500),
    "native_epoch": Trial(native_code.epoch, full=4_478, small=0),
    "native_races": Trial(native_code.races, full=4_478, small=60),
    "long_runs": Trial(long_runs.trial, full=30, small=0),
    "day": Trial(day.trial, full=86_400, small=5),  # seconds
    "notebooks": Trial(notebooks.trial, full=600, small=0),  # seconds
    "interrupts": Trial(interrupts.trial, full=100, small=1),
}
