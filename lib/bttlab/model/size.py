"""Sizes of the dense and the tensor variant."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from bttlab.model.config import ModelConfig


@dataclass(frozen=True)
class ModelSize:
    """Parameters of one model in both formats; MB are 10^6 bytes of FP32 (as in arXiv 2501.06663)."""

    encoders: int
    dense_parameters: int
    dense_megabytes: float
    tensor_parameters: int
    tensor_megabytes: float

    @property
    def compression(self) -> float:
        """Ratio of dense to tensor parameters."""
        return self.dense_parameters / self.tensor_parameters


def model_sizes(encoders: Iterable[int], config: ModelConfig | None = None) -> list[ModelSize]:
    """Return the sizes of models that differ from `config` (default: the paper's) in their number of encoders."""
    sizes = []
    for count in encoders:
        dense = replace(config or ModelConfig(), encoders=count, format="dense")
        tensor = replace(dense, format="tensor")
        sizes.append(
            ModelSize(
                count,
                dense.parameters_count,
                dense.parameters_bytes / 1e6,
                tensor.parameters_count,
                tensor.parameters_bytes / 1e6,
            )
        )
    return sizes
