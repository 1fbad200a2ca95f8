"""Learning rate schedules."""

from typing import Literal

import numpy as np
from pydantic import Field

from bttlab.util.errors import BttlabError
from bttlab.util.settings import settings


class ScheduleError(BttlabError, ValueError):
    """Raised if a schedule breaks a rule."""


@settings(ScheduleError)
class LearningRateSchedule:
    """Learning rate over a run: linear warm-up from 0, then constant or linear decay to 0.

    Raises ScheduleError if a value breaks a rule.
    """

    decay: Literal["none", "linear"] = "none"  # "linear" decays to 0 at the end of the run
    warm_up: float = Field(default=0.0, ge=0, lt=1)  # fraction of the run for warm-up, in [0, 1)

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
