"""Model the energy and memory of training on the U50; their ratios to a GPU's, modelled and published."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bttlab.baseline import EPOCH_SAMPLES
from bttlab.baseline.gpus import Gpu
from bttlab.baseline.modelled import model_step
from bttlab.card.constants import MODEL_VERSION, read_data
from bttlab.data import Samples
from bttlab.estimate.card import Estimate, estimate
from bttlab.estimate.geometry import capacity_bits
from bttlab.lab.meters import EnergyMeter
from bttlab.model import ModelConfig
from bttlab.util.quantities import Quantity

Ratio = tuple[float, float, float]


class ModelledMeter(EnergyMeter):
    """The energy that a card would have needed: modelled power times modelled time of each sample.

    The time that an emulated card takes plays no part in it.

    Parameters
    ----------
    config : ModelConfig
    optimizer : {"sgd", "momentum", "adamw"}
    """

    def __init__(self, config: ModelConfig, optimizer: str = "sgd"):
        super().__init__("modelled", f"the U50 model {MODEL_VERSION}, the middle of its band; the whole board")
        self._config, self._optimizer = config, optimizer

    def advance(self, samples: Samples, seconds: float) -> None:
        """Count some samples by their lengths."""
        lengths, counts = np.unique(samples.lengths, return_counts=True)
        steps = [
            count * step_of(self._config, self._optimizer, int(length))
            for length, count in zip(lengths, counts, strict=True)
        ]
        *joules, took = (sum(steps) + np.zeros(4)).tolist()
        self.add(*joules)
        self.seconds += took


@functools.cache
def step_of(config: ModelConfig, optimizer: str, length: int) -> np.ndarray:
    """Return a training step on a sample of `length` real tokens, modelled: joules low, middle, high, and seconds."""
    estimated = estimate(config, [length], optimizer)
    energy = estimated.energy_at_clocks
    return np.array([energy.low, energy.value, energy.high, estimated.seconds_per_sample])


def memory_of(config: ModelConfig, optimizer: str = "sgd") -> dict[str, Quantity]:
    """Return the bytes that training a model takes on the chip, by the accountings of `dashboard_runs.ACCOUNTINGS`."""
    memory = estimate(config, [config.sequence_length], optimizer).memory
    used = f"the U50 model {MODEL_VERSION}: bytes that the program uses, and the machine's own"
    occupied = f"the U50 model {MODEL_VERSION}: all blocks that the machine occupies, filled or not"
    return {
        "tensors": Quantity(memory.bytes, "bytes", "modelled", used),
        "footprint": Quantity(capacity_bits(memory.blocks) / 8, "bytes", "modelled", occupied),
    }


@dataclass(frozen=True)
class Published:
    """The paper's ratios of an RTX 3090 to the U50: data/u50/published.json.

    Attributes
    ----------
    memory : (float, float)
        Bytes of dense training there over those on the U50: least and most.
    energy : float
        Joules of tensor training there over those on the U50: at most.
    source : str
    """

    memory: tuple[float, float]
    energy: float
    source: str

    def __str__(self) -> str:
        low, high = self.memory
        return (
            f"published: RTX 3090 / U50 = {low:g} to {high:g} in memory (dense training), up to {self.energy:g} in "
            f"energy (tensor training); {self.source}"
        )


def published(config) -> Published | None:
    """Return what was published beside a U50 that trains a model; None for other models than the paper's."""
    if not any(config == ModelConfig(encoders=encoders) for encoders in range(2, 7)):
        return None
    paper = read_data("published")["training_paper"]
    facts = paper["facts"]
    memory = facts["memory_reduction"]
    source = paper["source"].split(" (")[0]
    return Published((memory["low"], memory["high"]), facts["energy_reduction"]["high"], source)


@dataclass(frozen=True)
class GpuRatios:
    """Ratios GPU / U50 of one model: low, middle and high, all modelled.

    Attributes
    ----------
    encoders : int
    energy : dict of str to Ratio
        Joules of an epoch: tensor training on the GPU over the U50, by mode ("eager", "graphs").
    memory : Ratio
        Bytes that a process of dense training holds, context and workspaces included, over those that training needs on
        the chip.
    blocks : Ratio
        The same over all block RAM and UltraRAM that the machine occupies, filled or not.
    tensors : float
        Bytes of that process's tensors alone over those that training needs on the chip.
    parameters : float
        Dense over tensor parameters.
    """

    encoders: int
    energy: dict[str, Ratio]
    memory: Ratio
    blocks: Ratio
    tensors: float
    parameters: float


def gpu_over_card(gpu: Gpu, encoders: int, sample: Samples) -> GpuRatios:
    """Compare a GPU with the U50 on utterances as long as `sample`, which is one."""
    config = ModelConfig(encoders=encoders)
    card = estimate(config, lengths={int(sample.lengths[0]): EPOCH_SAMPLES})
    chip, blocks = card.memory.bytes, capacity_bits(card.memory.blocks) / 8
    dense = model_step(gpu, "dense", "graphs", config, sample)
    sizes = [ModelConfig(encoders=encoders, format=kind).parameters_count for kind in ("dense", "tensor")]
    return GpuRatios(
        encoders,
        {mode: _energy(gpu, mode, config, sample, card) for mode in ("eager", "graphs")},
        tuple(held / chip for held in dense.process_bytes),
        tuple(held / blocks for held in dense.process_bytes),
        dense.tensor_bytes / chip,
        sizes[0] / sizes[1],
    )


def _energy(gpu: Gpu, mode: str, config: ModelConfig, sample: Samples, card: Estimate) -> Ratio:
    joules = [EPOCH_SAMPLES * value for value in model_step(gpu, "btt", mode, config, sample).joules]
    own = card.energy_at_clocks.scaled(card.samples)
    return over(joules, (own.low, own.value, own.high))


def over(numerator: Sequence[float], denominator: Sequence[float]) -> Ratio:
    """Return the ratio of the middles, between the extremes that the two bands (low, middle, high) allow."""
    return numerator[0] / denominator[2], numerator[1] / denominator[1], numerator[2] / denominator[0]
