"""Sizes of a model in dense and tensor format."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from bttlab.model.config import BYTES_PER_PARAMETER, ModelConfig


@dataclass(frozen=True)
class ModelSize:
    """Number of parameters of a model in both formats; MB are 10^6 bytes of FP32 (as in arXiv 2501.06663).

    Attributes
    ----------
    encoders : int or None
        None for a module.
    dense_parameters, tensor_parameters : int
        Number of parameters in each format.
    """

    encoders: int | None
    dense_parameters: int
    tensor_parameters: int

    @property
    def dense_megabytes(self) -> float:
        return self.dense_parameters * BYTES_PER_PARAMETER / 1e6

    @property
    def tensor_megabytes(self) -> float:
        return self.tensor_parameters * BYTES_PER_PARAMETER / 1e6

    @property
    def compression(self) -> float:
        """Ratio of dense to tensor parameters."""
        return self.dense_parameters / self.tensor_parameters


def model_sizes(encoders: Iterable[int], config: ModelConfig | None = None) -> list[ModelSize]:
    """Return the sizes of models like a configuration, with other numbers of encoders.

    Parameters
    ----------
    encoders : iterable of int
        Numbers of encoders.
    config : ModelConfig, optional
        By default the paper's.

    Returns
    -------
    list of ModelSize
        One for each number, in order.
    """
    sizes = []
    for count in encoders:
        dense = replace(config or ModelConfig(), encoders=count, format="dense")
        sizes.append(ModelSize(count, dense.parameters_count, replace(dense, format="tensor").parameters_count))
    return sizes
