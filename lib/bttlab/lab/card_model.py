"""What the model of the U50 says of a training run: energy and memory where no sensor can measure them."""

import functools

import numpy as np

from bttlab.card.constants import MODEL_VERSION
from bttlab.data import Samples
from bttlab.estimate.card import estimate
from bttlab.figures import Figure
from bttlab.model import ModelConfig


class ModelledMeter:
    """The energy that a card would have needed: modelled power times modelled time of each sample.

    The time that an emulated card takes plays no part in it.

    Parameters
    ----------
    config : ModelConfig

    Attributes
    ----------
    seconds : float
        That a U50 would have taken.
    """

    provenance = "modelled"
    how = f"the U50 model {MODEL_VERSION}, the middle of its band; the whole board"

    def __init__(self, config: ModelConfig):
        self._config = config
        self.joules, self.bounds, self.seconds = 0.0, (0.0, 0.0), 0.0

    def advance(self, samples: Samples, seconds: float) -> None:
        """Count some samples by their lengths."""
        lengths, counts = np.unique(samples.lengths, return_counts=True)
        steps = [count * step_of(self._config, int(length)) for length, count in zip(lengths, counts, strict=True)]
        low, middle, high, took = (sum(steps) + np.zeros(4)).tolist()
        self.joules += middle
        self.bounds = self.bounds[0] + low, self.bounds[1] + high
        self.seconds += took


@functools.cache
def step_of(config: ModelConfig, length: int) -> np.ndarray:
    """Return a training step on a sample of `length` real tokens, modelled: joules low, middle, high, and seconds."""
    found = estimate(config, lengths=[length])
    energy = found.energy_per_sample
    return np.array([energy.low, energy.mid, energy.high, found.seconds_per_sample])


def memory_of(config: ModelConfig) -> Figure:
    """Return the bytes that training a model needs on the chip."""
    how = f"the U50 model {MODEL_VERSION}: words that the program touches, and the machine's"
    return Figure(estimate(config).memory.bytes, "bytes", "modelled", how)
