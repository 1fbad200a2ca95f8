"""Place of each parameter in the banks, and of its elements in vectors; the copy in and out."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from bttlab.compiler import banks
from bttlab.compiler.builder import Builder, vectors_for
from bttlab.compiler.instruction import At, at
from bttlab.compiler.machine import machine
from bttlab.model.config import LINEARS, ModelConfig

LANES = machine().LANES

# The cores of a linear layer as its halves hold them: (core, order of its axes); the last axis lies along the lanes.
# L = (G1 G2) G3 and R = G4 (G5 G6): `near` is the core at the middle rank, `far` the one at the end.
OUT_AXES = {"near": (2, (2, 1, 0)), "middle": (1, (2, 1, 0)), "far": (0, (2, 0, 1))}
IN_AXES = {"near": (3, (0, 1, 2)), "middle": (4, (0, 1, 2)), "far": (5, (0, 2, 1))}


@dataclass(frozen=True)
class Block:
    """A parameter, or a part of its rows, in a bank.

    Attributes
    ----------
    shape : tuple of int
    axes : tuple of int
        In this order the axes are read as groups, rows and, along the lanes, columns.
    rows : int
        Of a group.
    group_rows : int
        From group to group; what is not filled stays 0.
    first, last : int
        The rows that lie here, if it is a part.
    """

    name: str
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    bank: int
    base: int
    columns: int
    rows: int
    group_rows: int
    first: int
    last: int

    @property
    def row_vectors(self) -> int:
        """Vectors of a row."""
        return vectors_for(self.columns)

    @property
    def groups(self) -> int:
        """Groups of rows."""
        return -(-(self.last - self.first) // self.rows)

    @property
    def vectors(self) -> int:
        """Size in vectors."""
        return self.groups * self.group_rows * self.row_vectors

    def where(self, **strides: int) -> At:
        """Return where its first vector lies."""
        return at(f"bank {self.bank}", self.base, **strides)

    def gradient(self, **strides: int) -> At:
        """Return where the first vector of its gradient lies."""
        return at(f"bank {self.bank + banks.GRADIENT}", self.base, **strides)

    def write(self, memory: np.ndarray, value: np.ndarray) -> None:
        """Put the parameter into its vectors, float32 of shape (vectors, LANES)."""
        rows = np.ascontiguousarray(value.transpose(self.axes)).reshape(-1, self.columns)[self.first : self.last]
        target = memory.reshape(self.groups, self.group_rows, self.row_vectors * LANES)
        whole = np.zeros((self.groups * self.rows, self.columns), np.float32)
        whole[: len(rows)] = rows
        target[:, : self.rows, : self.columns] = whole.reshape(self.groups, self.rows, self.columns)

    def read(self, memory: np.ndarray, into: np.ndarray) -> None:
        """Take its rows out of its vectors into the parameter."""
        source = memory.reshape(self.groups, self.group_rows, self.row_vectors * LANES)
        rows = source[:, : self.rows, : self.columns].reshape(-1, self.columns)[: self.last - self.first]
        moved = np.ascontiguousarray(into.transpose(self.axes)).reshape(-1, self.columns)
        moved[self.first : self.last] = rows
        shape = tuple(self.shape[axis] for axis in self.axes)
        into[...] = moved.reshape(shape).transpose(np.argsort(self.axes))


class Layout:
    """The parameters of a model in the banks.

    Attributes
    ----------
    blocks : list of Block
        In the order in which LOAD and STORE move them.
    """

    def __init__(self, builder: Builder, shapes: Mapping[str, tuple[int, ...]]):
        self._builder, self._shapes = builder, shapes
        self.blocks: list[Block] = []
        self._of: dict[tuple[str, int], Block] = {}

    def place(self, name, bank, axes=None, rows=None, group_rows=None, part=None) -> Block:
        """Place a parameter, or its rows `part`, in a bank, or in the first of several that has room."""
        shape = self._shapes[name]
        axes = tuple(range(len(shape))) if axes is None else axes
        columns = shape[axes[-1]]
        all_rows = int(np.prod(shape)) // columns
        first, last = part or (0, all_rows)
        last = min(last, all_rows)
        rows = last - first if rows is None else rows
        group_rows = rows if group_rows is None else group_rows
        vectors = -(-(last - first) // rows) * group_rows * vectors_for(columns)
        place = self._builder.take(name, bank, vectors)
        gradients = self._builder.banks[place.number + banks.GRADIENT]
        assert gradients.take(f"gradient of {name}", vectors) == place.base
        block = Block(name, shape, axes, place.number, place.base, columns, rows, group_rows, first, last)
        self.blocks.append(block)
        self._of[name, first] = block
        return block

    def of(self, name: str, first: int = 0) -> Block:
        """Return where a parameter lies, or its part that begins with row `first`."""
        return self._of[name, first]

    @property
    def vectors(self) -> int:
        """Size of all parameters in vectors."""
        return sum(block.vectors for block in self.blocks)

    def pack(self, tensors: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the parameters as LOAD takes them, float32 of shape (vectors, LANES)."""
        memory, offset = np.zeros((self.vectors, LANES), np.float32), 0
        for block in self.blocks:
            block.write(memory[offset : offset + block.vectors], np.asarray(tensors[block.name], np.float32))
            offset += block.vectors
        return memory

    def unpack(self, memory: np.ndarray) -> dict[str, np.ndarray]:
        """Return the parameters that `pack` was given."""
        tensors, offset = {name: np.zeros(shape, np.float32) for name, shape in self._shapes.items()}, 0
        for block in self.blocks:
            block.read(memory[offset : offset + block.vectors], tensors[block.name])
            offset += block.vectors
        return tensors


def linear_names(config: ModelConfig) -> Iterator[str]:
    """Yield the names of the linear layers in the order of the forward pass."""
    for i in range(config.encoders):
        for part in LINEARS:
            yield f"encoders.{i}.{part}"
    yield "intent_pooler"
    yield "slot_pooler"


def norm_names(config: ModelConfig) -> Iterator[str]:
    """Yield the names of the LayerNorms in the order of the forward pass."""
    yield "embedding.norm"
    for i in range(config.encoders):
        yield f"encoders.{i}.attention_norm"
        yield f"encoders.{i}.feed_forward_norm"
