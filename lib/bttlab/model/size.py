"""Sizes of the dense and the tensor variant."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from bttlab.model.config import BYTES_PER_PARAMETER, ModelConfig


@dataclass(frozen=True)
class ModelSize:
    """Parameters of one model in both formats; MB are 10^6 bytes of FP32 (as in arXiv 2501.06663).

    Attributes
    ----------
    encoders : int or None
        None of a module.
    """

    encoders: int | None
    dense_parameters: int
    tensor_parameters: int

    @property
    def dense_megabytes(self) -> float:
        """Size of the dense model."""
        return self.dense_parameters * BYTES_PER_PARAMETER / 1e6

    @property
    def tensor_megabytes(self) -> float:
        """Size of the tensor model."""
        return self.tensor_parameters * BYTES_PER_PARAMETER / 1e6

    @property
    def compression(self) -> float:
        """Ratio of dense to tensor parameters."""
        return self.dense_parameters / self.tensor_parameters


def model_sizes(encoders: Iterable[int], config: ModelConfig | None = None) -> list[ModelSize]:
    """Return the sizes of models that differ from `config` (default: the paper's) in their number of encoders."""
    sizes = []
    for count in encoders:
        dense = replace(config or ModelConfig(), encoders=count, format="dense")
        sizes.append(ModelSize(count, dense.parameters_count, replace(dense, format="tensor").parameters_count))
    return sizes
