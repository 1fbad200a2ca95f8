"""Beside a training run on the U50: what its model says where no sensor can measure, and what was published."""

import functools
from dataclasses import dataclass, replace

import numpy as np

from bttlab.card.constants import MODEL_VERSION, read_data
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
    optimizer : {"sgd", "momentum", "adamw"}

    Attributes
    ----------
    seconds : float
        That a U50 would have taken.
    """

    provenance = "modelled"
    how = f"the U50 model {MODEL_VERSION}, the middle of its band; the whole board"

    def __init__(self, config: ModelConfig, optimizer: str = "sgd"):
        self._config, self._optimizer = config, optimizer
        self.joules, self.bounds, self.seconds = 0.0, (0.0, 0.0), 0.0

    def advance(self, samples: Samples, seconds: float) -> None:
        """Count some samples by their lengths."""
        lengths, counts = np.unique(samples.lengths, return_counts=True)
        steps = [
            count * step_of(self._config, self._optimizer, int(length))
            for length, count in zip(lengths, counts, strict=True)
        ]
        low, middle, high, took = (sum(steps) + np.zeros(4)).tolist()
        self.joules += middle
        self.bounds = self.bounds[0] + low, self.bounds[1] + high
        self.seconds += took


@functools.cache
def step_of(config: ModelConfig, optimizer: str, length: int) -> np.ndarray:
    """Return a training step on a sample of `length` real tokens, modelled: joules low, middle, high, and seconds."""
    estimated = estimate(config, [length], optimizer)
    energy = estimated.energy_per_sample
    return np.array([energy.low, energy.mid, energy.high, estimated.seconds_per_sample])


def memory_of(config: ModelConfig, optimizer: str = "sgd") -> Figure:
    """Return the bytes that training a model needs on the chip."""
    how = f"the U50 model {MODEL_VERSION}: words that the program touches, and the machine's"
    return Figure(estimate(config, optimizer=optimizer).memory.bytes, "bytes", "modelled", how)


@dataclass(frozen=True)
class Published:
    """What the paper says of an RTX 3090 beside the U50: data/u50/published.json.

    Attributes
    ----------
    memory : (float, float)
        Bytes of uncompressed training there, as times those on the U50: least and most.
    energy : float
        Joules of tensor-compressed training there, as times those on the U50: at most.
    chip : float
        Bytes of on-chip memory that the paper's accelerator stays below.
    source : str
    """

    memory: tuple[float, float]
    energy: float
    chip: float
    source: str

    def __str__(self) -> str:
        low, high = self.memory
        return (
            f"published: an RTX 3090 takes {low:g} to {high:g} x the memory (dense), up to {self.energy:g} x the "
            f"energy (tensor); {self.source}"
        )


def published(config: ModelConfig) -> Published | None:
    """Return what was published beside a U50 that trains a model; None for other models than the paper's."""
    if not 2 <= config.encoders <= 6 or config != replace(ModelConfig(), encoders=config.encoders):
        return None
    paper = read_data("published")["training_paper"]
    facts = paper["facts"]
    memory, chip = facts["memory_reduction"], facts["bram"]["high"] + facts["uram"]["high"]
    source = paper["source"].split(" (")[0]
    return Published((memory["low"], memory["high"]), facts["energy_reduction"]["high"], chip * 2**20, source)
