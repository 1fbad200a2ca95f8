"""The TT linear layer that the contraction kernels are built for: its shape, and its cores as the kernels hold them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from bttlab.model.config import ModelConfig
from bttlab.tensor.shapes import ShapeError, tt_shapes
from bttlab.u50.records import IN_CORES, LANES, OUT_CORES, Block


@dataclass(frozen=True)
class LayerShape:
    """A linear layer in tensor-train format, without bias, and the most tokens of a pass.

    Parameters
    ----------
    out_modes, in_modes : tuple of int
        Three modes at each end.
    rank : int
    tokens : int
    """

    out_modes: tuple[int, ...]
    in_modes: tuple[int, ...]
    rank: int
    tokens: int

    @classmethod
    def of(cls, model: ModelConfig) -> "LayerShape":
        """Return the linear layers' shape in a model."""
        return cls(model.linear_out_modes, model.linear_in_modes, model.linear_rank, model.sequence_length)

    def to_dict(self) -> dict[str, Any]:
        """Return the shape as what JSON takes."""
        return asdict(self)

    @property
    def features(self) -> int:
        """Size of a token's input and output."""
        return int(np.prod(self.out_modes))

    @cached_property
    def core_shapes(self) -> list[tuple[int, int, int]]:
        """Shapes (r_prev, n, r_next) of the six cores, output modes first."""
        return tt_shapes(self.out_modes, self.in_modes, self.rank)

    @cached_property
    def blocks(self) -> Mapping[int, Block]:
        """Where each core lies in the kernels' memory, in the order of `hls_src/contraction.h`."""
        blocks, offset = {}, 0
        for number, axes in (OUT_CORES | IN_CORES).items():
            shape = self.core_shapes[number]
            blocks[number] = Block(f"G{number + 1}", shape, axes, shape[axes[-1]], offset)
            offset += blocks[number].words
        return blocks

    @property
    def cores_words(self) -> int:
        """Size of all cores in the kernels' memory, in words."""
        return sum(block.words for block in self.blocks.values())

    def pack(self, cores: Sequence[Any]) -> np.ndarray:
        """Return six cores as words, float32 of shape (words, LANES).

        Raises
        ------
        ShapeError
            If they are not six, or not of `core_shapes`.
        """
        arrays = [as_float32(core) for core in cores]
        found = [array.shape for array in arrays]
        if found != self.core_shapes:
            raise ShapeError(f"the cores have the shapes {found}: the kernel is built for {self.core_shapes}")
        memory = np.zeros((self.cores_words, LANES), np.float32)
        for number, block in self.blocks.items():
            block.write(memory, arrays[number])
        return memory

    def unpack(self, memory: np.ndarray) -> list[np.ndarray]:
        """Return the cores that `pack` was given."""
        return [self.blocks[number].read(memory) for number in range(len(self.blocks))]


def as_float32(values: Any) -> np.ndarray:
    """Return an array, a nested list or a PyTorch tensor, also one that takes part in autograd, as float32.

    Raises
    ------
    ShapeError
        If it holds anything but numbers.
    """
    if hasattr(values, "detach"):
        values = values.detach()
    try:
        return np.asarray(values, np.float32)
    except (TypeError, ValueError) as error:
        raise ShapeError(f"{type(values).__name__} is no array of numbers ({error}); give a NumPy array") from None
