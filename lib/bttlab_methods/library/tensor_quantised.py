"""Quantisation-aware training of cores."""

from dataclasses import dataclass
from typing import Any, ClassVar

from bttlab.tensor import QuantisedCores
from bttlab_methods.bonds import numbers, trains
from bttlab_methods.library.tensor import TensorCompression
from bttlab_methods.training import Training

SCALE_BYTES = 4  # FP32, one for each core


@dataclass(frozen=True)
class TensorInt8(TensorCompression):
    """Tensor compression with TT and TTM cores rounded to INT8 in the forward pass, trained as FP32.

    Each core has one scale, by its largest entry, where the paper learns scales; gradients pass straight through.

    Parameters
    ----------
    rank, embedding_rank, rate_factor
        As for tensor.
    """

    name = "tensor-int8"
    family = "low precision"
    source = "after Yang et al., arXiv 2306.01076 (quantisation-aware training of cores)"

    bits: ClassVar[int] = 8

    def change_model(self, training: Training) -> None:
        """Round the cores wherever they are used."""
        for layer in trains(training):
            layer.core_map = QuantisedCores(self.bits)

    def finish(self, training: Training) -> dict[str, Any]:
        """Return the size of the model whose cores are stored in few bits, all else in FP32."""
        layers = trains(training)
        count, cores = numbers(layers), sum(len(layer.cores) for layer in layers)
        everything = sum(parameter.numel() for parameter in training.model.parameters())
        return {
            "bits_of_cores": self.bits,
            "numbers_in_cores": count,
            "quantised_bytes": -(-count * self.bits // 8) + SCALE_BYTES * cores + 4 * (everything - count),
            "fp32_bytes": 4 * everything,
        }


@dataclass(frozen=True)
class TensorInt4(TensorInt8):
    """Tensor compression with TT and TTM cores rounded to INT4 in the forward pass, trained as FP32.

    Parameters
    ----------
    rank, embedding_rank, rate_factor
        As for tensor.
    """

    name = "tensor-int4"

    bits: ClassVar[int] = 4
