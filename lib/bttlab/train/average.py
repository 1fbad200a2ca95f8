"""The mean of the parameters over the last epochs of a run: a steadier model than any one of those epochs leaves."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class ParameterSum:
    """The sum of a model's parameters as they were at the ends of epochs.

    Averaging the weights along a run is due to Polyak and Juditsky (SIAM J. Control Optim. 30, 1992), over epochs' ends
    to Izmailov et al. (arXiv 1803.05407).

    Parameters
    ----------
    count : int
        How many are added up.
    totals : mapping of str to ndarray of float64
        By the parameters' names; empty where `count` is 0.
    """

    count: int = 0
    totals: Mapping[str, np.ndarray] = field(default_factory=dict)

    def plus(self, parameters: Mapping[str, np.ndarray]) -> "ParameterSum":
        """Return the sum with one more set of parameters."""
        if not self.count:
            return ParameterSum(1, {name: np.asarray(array, np.float64) for name, array in parameters.items()})
        return ParameterSum(self.count + 1, {name: total + parameters[name] for name, total in self.totals.items()})

    def mean(self) -> dict[str, np.ndarray]:
        """Return the mean, as float32."""
        return {name: (total / self.count).astype(np.float32) for name, total in self.totals.items()}


def is_averaged(epoch: int, epochs: int, average: float) -> bool:
    """Whether the parameters at the end of an epoch are among those that are averaged.

    Parameters
    ----------
    epoch : int
        From 1.
    epochs : int
        Of the run.
    average : float
        Part of the run, at its end, that is averaged over, in [0, 1).
    """
    return epoch > epochs * (1 - average)
