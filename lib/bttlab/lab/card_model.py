"""What the model of the U50 says of a training run: energy and memory where no sensor can measure them."""

import functools

import numpy as np

from bttlab.data import Samples
from bttlab.estimate.card import estimate
from bttlab.lab.runs import Memory
from bttlab.model import ModelConfig
from bttlab.u50.constants import MODEL_VERSION


class ModelledMeter:
    """The energy that a card would have needed: modelled power times modelled time of each sample.

    The time that an emulated card takes plays no part in it.

    Parameters
    ----------
    config : ModelConfig
    """

    provenance = "modelled"
    how = f"the U50 model {MODEL_VERSION}, the middle of its band; the whole board"
    bounds = None

    def __init__(self, config: ModelConfig):
        self._config = config
        self.joules = 0.0

    def advance(self, samples: Samples, seconds: float) -> None:
        """Count some samples by their lengths."""
        lengths, counts = np.unique(samples.lengths, return_counts=True)
        self.joules += sum(
            count * joules_of(self._config, int(length)) for length, count in zip(lengths, counts, strict=True)
        )


@functools.cache
def joules_of(config: ModelConfig, length: int) -> float:
    """Return the modelled energy of a training step on a sample of `length` real tokens, in joules."""
    return estimate(config, lengths=[length]).energy_per_sample.mid


def memory_of(config: ModelConfig) -> Memory:
    """Return the bytes that training a model needs on the chip."""
    bytes = estimate(config).memory.bytes
    return Memory(
        bytes, "modelled", f"the U50 model {MODEL_VERSION}: words that the program touches, and the machine's"
    )
