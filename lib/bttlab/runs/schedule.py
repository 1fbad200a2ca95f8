"""Learning rate schedules."""

from dataclasses import dataclass

import numpy as np

from bttlab.util.errors import BttlabError

DECAYS = ("none", "linear")


class ScheduleError(BttlabError):
    """Raised if a schedule breaks a rule."""


@dataclass(frozen=True)
class LearningRateSchedule:
    """Learning rate over a run: linear warm-up from 0, then constant or linear decay to 0.

    Parameters
    ----------
    decay : {"none", "linear"}
        "linear" decays to 0 at the end of the run.
    warm_up : float
        Fraction of the run for warm-up, in [0, 1).

    Raises
    ------
    ScheduleError
        If a value breaks a rule.
    """

    decay: str = "none"
    warm_up: float = 0.0

    def __post_init__(self) -> None:
        if self.decay not in DECAYS:
            raise ScheduleError(f"decay is {self.decay!r}: choose one of {', '.join(DECAYS)}")
        if isinstance(self.warm_up, bool) or not isinstance(self.warm_up, int | float) or not 0 <= self.warm_up < 1:
            raise ScheduleError(f"warm_up is {self.warm_up!r}: it is a part of the run, at least 0 and below 1")

    def rates(self, peak: float, steps: np.ndarray, total: int) -> np.ndarray:
        """Return the learning rates of steps.

        Parameters
        ----------
        peak : float
            The highest.
        steps : ndarray of int
            Numbers of steps, from 0 below `total`.
        total : int
            Steps of the run.
        """
        done = np.asarray(steps, np.float64) / total
        rates = np.ones_like(done) if self.decay == "none" else (1.0 - done) / (1.0 - self.warm_up)
        rise = done / self.warm_up if self.warm_up else np.inf
        return peak * np.minimum(np.minimum(rates, 1.0), rise)
