"""Fits of step time and largest batch to measured profiles, and how wrong they are on what they have not seen.

Both are sums of non-negative terms that follow from the shapes alone, fitted by non-negative least squares to relative
errors. Leaving out each configuration in turn gives the held-out errors, and by the delete-one jackknife also the
confidence intervals of the coefficients (Efron and Tibshirani, An Introduction to the Bootstrap, ch. 11).
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import optimize, special

from bttlab.cost.configuration import VALUE_BYTES, CostError, FineTuning
from bttlab.cost.profiles import Profile

FEWEST = 24  # configurations to fit to
CONFIDENCE = 0.95
GRID = sorted({2**power for power in range(40)} | {3 * 2**power for power in range(40)})


def time_terms(config: FineTuning, batch: int) -> dict[str, float]:
    """Return what a step of `batch` sequences consists of, by the name of the term.

    MACs count the passes that a matrix takes part in: forward, gradient of the input and, where the weight is trained,
    gradient of the weight.
    """
    tokens = batch * config.sequence_length
    layers, hidden, inner, chosen = config.layers, config.hidden, config.expert_hidden, config.top_k
    busy = config.experts * (1 - (1 - config.sparsity) ** tokens)  # experts that get a token if all are as likely
    full = config.method == "full"
    passes, calls = (3, 1) if full else (2, 3)  # an adapter is two more products
    tensors = layers * (5 + 3 * config.experts) * (1 if full else 2)
    touched = layers * (4 * hidden**2 + 3 * busy * hidden * inner)
    return {
        "step": 1,
        "layer": layers,
        "call": layers * (5 + 3 * busy) * calls,
        "tensor": tensors,
        "trainable": config.trainable,
        "weights": touched,
        "attention MACs": passes * tokens * layers * 4 * hidden**2,
        "expert MACs": passes * tokens * layers * chosen * 3 * hidden * inner,
        "output MACs": 3 * tokens * config.vocabulary * hidden,
        "score MACs": 3 * tokens * config.sequence_length * layers * hidden,
        "hidden": tokens * layers * hidden,
        "expert hidden": tokens * layers * chosen * inner,
        "routed": tokens * layers * chosen * hidden,
        "adapter": 0 if full else tokens * layers * (4 * hidden + chosen * (inner + hidden)),
        "logits": tokens * config.vocabulary,
    }


def memory_terms(config: FineTuning, batch: float) -> dict[str, float]:
    """Return what the peak of a step of `batch` sequences consists of beside the state, in bytes of FP32."""
    tokens = batch * config.sequence_length
    layers, hidden, inner, chosen = config.layers, config.hidden, config.expert_hidden, config.top_k
    lora = config.method == "lora"
    elements = {
        "process": 2**18,  # a MiB
        "gradients": config.trainable,
        "hidden": tokens * layers * hidden,
        "expert hidden": tokens * layers * chosen * inner,
        "routed": tokens * layers * chosen * hidden,
        "adapter": tokens * layers * (hidden + chosen * inner) if lora else 0,
        "logits": tokens * config.vocabulary,
    }
    return {name: VALUE_BYTES["fp32"] * count for name, count in elements.items()}


@dataclass(frozen=True)
class Coefficients:
    """Of one sum of terms.

    Attributes
    ----------
    values : dict of str to float
    low, high : dict of str to float
        Ends of the confidence interval.
    """

    values: dict[str, float]
    low: dict[str, float]
    high: dict[str, float]


class CostModel:
    """Step time and largest batch of fine-tuning runs on the device that was profiled.

    Parameters
    ----------
    profiles : sequence of Profile
        Of one device.
    budget : int
        Bytes that their largest batches were sought within.

    Raises
    ------
    CostError
        If they are fewer than `FEWEST` configurations.
    """

    def __init__(self, profiles: Sequence[Profile], budget: int):
        self.profiles = [profile for profile in profiles if profile.batches]
        self.budget = budget
        missing = FEWEST - len(self.profiles)
        if missing > 0:
            raise CostError(
                f"{len(self.profiles)} profiled configurations: the fit takes {FEWEST}, {missing} more are needed; "
                "measure them with bttlab cost profile"
            )
        self._time, self._memory = _fit_time(self.profiles), _fit_memory(self.profiles, budget)

    def step_seconds(self, config: FineTuning, batch: int) -> float:
        """Return the modelled seconds of a step."""
        return _seconds(self._time, config, batch)

    def largest_batch(self, config: FineTuning, memory: int) -> int:
        """Return the modelled largest batch within `memory` bytes; 0 if not even one sequence fits."""
        return _largest_batch(self._memory, config, memory)

    @cached_property
    def held_out(self) -> "HeldOut":
        """Errors on each configuration of a fit to all the others."""
        return held_out(
            self.profiles,
            lambda others: _predictors(_fit_time(others), _fit_memory(others, self.budget), self.budget),
        )

    @cached_property
    def coefficients(self) -> dict[str, Coefficients]:
        """Of "time" (seconds a unit) and "memory" (bytes a byte) with their confidence intervals."""
        return {
            "time": _jackknife(self._time, [_fit_time(others) for others in _others(self.profiles)]),
            "memory": _jackknife(self._memory, [_fit_memory(others, self.budget) for others in _others(self.profiles)]),
        }


Predictor = tuple[Callable[[FineTuning, int], float], Callable[[FineTuning], int]]


@dataclass(frozen=True)
class HeldOut:
    """Errors on configurations that a fit has not seen.

    Attributes
    ----------
    throughput : list of ndarray
        Of each configuration, at each of its batch sizes: predicted over measured throughput.
    batches : list of (int, int)
        Of each configuration: largest batch predicted and measured.
    """

    throughput: list[np.ndarray]
    batches: list[tuple[int, int]]

    @property
    def throughput_errors(self) -> np.ndarray:
        """Relative errors, absolute, of all points."""
        return np.abs(np.concatenate(self.throughput) - 1)

    @property
    def batch_steps(self) -> np.ndarray:
        """Steps of the batch grid between predicted and measured largest batch, of each configuration."""
        return np.array([abs(grid_step(predicted) - grid_step(measured)) for predicted, measured in self.batches])


def grid_step(batch: int) -> int:
    """Return how many sizes of the batch grid 1, 2, 3, 4, 6, 8, 12, 16, 24, 32 … are at most `batch`."""
    return bisect_right(GRID, batch)


def held_out(profiles: Sequence[Profile], fit: Callable[[Sequence[Profile]], Predictor]) -> HeldOut:
    """Leave out each configuration in turn, fit to the others, and compare.

    Parameters
    ----------
    profiles : sequence of Profile
    fit : callable
        Profiles to a pair of functions: configuration and batch to tokens per second, configuration to largest batch.
    """
    ratios, batches = [], []
    for left_out, others in zip(profiles, _others(profiles), strict=True):
        throughput, largest = fit(others)
        predicted = np.array([throughput(left_out.config, batch) for batch in left_out.batches])
        ratios.append(predicted / left_out.tokens_per_second)
        batches.append((largest(left_out.config), left_out.largest_batch))
    return HeldOut(ratios, batches)


def _others(profiles: Sequence[Profile]) -> list[list[Profile]]:
    return [[*profiles[:i], *profiles[i + 1 :]] for i in range(len(profiles))]


def _predictors(time: Mapping[str, float], memory: Mapping[str, float], budget: int) -> Predictor:
    return (
        lambda config, batch: batch * config.sequence_length / _seconds(time, config, batch),
        lambda config: _largest_batch(memory, config, budget),
    )


def _seconds(coefficients: Mapping[str, float], config: FineTuning, batch: int) -> float:
    return sum(coefficients[name] * count for name, count in time_terms(config, batch).items())


def _largest_batch(coefficients: Mapping[str, float], config: FineTuning, memory: int) -> int:
    def peak(batch: float) -> float:
        return sum(coefficients[name] * count for name, count in memory_terms(config, batch).items())

    fixed, each = config.state_bytes + peak(0), peak(1) - peak(0)
    return max(0, int((memory - fixed) / each))


def _fit_time(profiles: Sequence[Profile]) -> dict[str, float]:
    rows = [
        (time_terms(profile.config, batch), seconds)
        for profile in profiles
        for batch, seconds in zip(profile.batches, profile.seconds, strict=True)
    ]
    return _least_squares([terms for terms, _ in rows], np.array([seconds for _, seconds in rows]))


def _fit_memory(profiles: Sequence[Profile], budget: int) -> dict[str, float]:
    # The peak is within the budget at the largest batch, and beyond it at the next: it is met half a sequence on.
    terms = [memory_terms(profile.config, profile.largest_batch + 0.5) for profile in profiles]
    return _least_squares(terms, np.array([budget - profile.config.state_bytes for profile in profiles]))


def _least_squares(terms: Sequence[Mapping[str, float]], targets: np.ndarray) -> dict[str, float]:
    """Non-negative coefficients with the least sum of squared relative errors."""
    names = list(terms[0])
    matrix = np.array([[row[name] for name in names] for row in terms], dtype=float) / targets[:, None]
    scale = matrix.max(axis=0)  # terms differ by ten orders of magnitude
    scale[scale == 0] = 1.0
    solution, _ = optimize.nnls(matrix / scale, np.ones(len(targets)))
    return dict(zip(names, (solution / scale).tolist(), strict=True))


def _jackknife(whole: Mapping[str, float], without: Sequence[Mapping[str, float]]) -> Coefficients:
    n = len(without)
    t = special.stdtrit(n - 1, (1 + CONFIDENCE) / 2)  # of Student's t; scipy.stats takes a second to import
    half = {}
    for name in whole:
        values = np.array([fit[name] for fit in without])
        half[name] = float(t * np.sqrt((n - 1) / n * np.sum((values - values.mean()) ** 2)))
    return Coefficients(
        dict(whole),
        {name: max(0.0, value - half[name]) for name, value in whole.items()},
        {name: value + half[name] for name, value in whole.items()},
    )
