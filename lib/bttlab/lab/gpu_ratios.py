"""The ratios GPU / U50 of energy and memory, both modelled."""

from collections.abc import Sequence
from dataclasses import dataclass

from bttlab.baseline import EPOCH_SAMPLES
from bttlab.baseline.gpus import Gpu
from bttlab.baseline.modelled import model_step
from bttlab.data import Samples
from bttlab.estimate.card import Estimate, estimate
from bttlab.hardware.geometry import capacity_bits
from bttlab.model import ModelConfig

Ratio = tuple[float, float, float]


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
