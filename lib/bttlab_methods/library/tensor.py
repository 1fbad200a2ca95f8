"""Tensor compression: what BTT Lab is about, and its cores in few bits."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from bttlab.tensor import QuantisedCores
from bttlab_methods.layers import numbers, trains
from bttlab_methods.method import Method
from bttlab_methods.setting import Setting
from bttlab_methods.training import Training

SCALE_BYTES = 4  # FP32, one for each core


@dataclass(frozen=True)
class TensorCompression(Method):
    """Linear layers in TT format, the embedding in TTM format, trained as cores; contraction bi-directional."""

    name = "tensor"
    family = "tensor compression"
    source = "arXiv 2501.06663"
    changes = frozenset({"linear layers", "embedding"})

    # rank, embedding_rank: internal ranks of the TT layers and of the TTM embedding
    rank: int = 12
    embedding_rank: int = 30
    rate_factor: float = 4.0  # of the learning rate: cores want a higher one than matrices

    def change_setting(self, setting: Setting) -> Setting:
        config = replace(setting.config, format="tensor", linear_rank=self.rank, embedding_rank=self.embedding_rank)
        return replace(setting, config=config).scaled(self.rate_factor)


class TensorInt8(TensorCompression):
    """Tensor compression with TT and TTM cores rounded to INT8 in the forward pass, trained as FP32.

    Each core has one scale, by its largest entry, where the paper learns scales; gradients pass straight through.
    """

    name = "tensor-int8"
    family = "low precision"
    source = "after Yang et al., arXiv 2306.01076 (quantisation-aware training of cores)"

    bits: ClassVar[int] = 8

    def change_model(self, training: Training) -> None:
        for layer in trains(training.model):
            layer.core_map = QuantisedCores(self.bits)

    def finish(self, training: Training) -> dict[str, Any]:
        """Return the size of the model whose cores are stored in few bits, all else in FP32."""
        layers = trains(training.model)
        count, cores = numbers(layers), sum(len(layer.cores) for layer in layers)
        everything = sum(parameter.numel() for parameter in training.model.parameters())
        return {
            "bits_of_cores": self.bits,
            "numbers_in_cores": count,
            "quantised_bytes": -(-count * self.bits // 8) + SCALE_BYTES * cores + 4 * (everything - count),
            "fp32_bytes": 4 * everything,
        }


class TensorInt4(TensorInt8):
    """Tensor compression with TT and TTM cores rounded to INT4 in the forward pass, trained as FP32."""

    name = "tensor-int4"

    bits: ClassVar[int] = 4
