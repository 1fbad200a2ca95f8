"""Place of each parameter in the banks, and of its elements in vectors; the copy in and out."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from bttlab.compiler.banks import GRADIENT_OF, Buffer
from bttlab.compiler.builder import Builder, vectors_for
from bttlab.compiler.instruction import At, at
from bttlab.compiler.machine import machine

LANES = machine().LANES

# The order of the axes of a linear layer's cores at each end of the train; the last lies along the lanes. `near` is the
# core at the middle rank, `far` the one at the end: L = (G1 G2) G3 and R = G4 (G5 G6).
OUT_AXES = {"near": (2, 1, 0), "middle": (2, 1, 0), "far": (2, 0, 1)}
IN_AXES = {"near": (0, 1, 2), "middle": (0, 1, 2), "far": (0, 2, 1)}


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
    buffer: Buffer
    columns: int
    rows: int
    group_rows: int
    first: int
    last: int

    @property
    def bank(self) -> int:
        """The bank of its buffer."""
        return self.buffer.bank

    @property
    def base(self) -> int:
        """Its first vector there."""
        return self.buffer.base

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
        if self.bank is None:
            return at(f"matrix {self.buffer.number}", 0, **strides)
        return at(f"bank {self.bank}", self.base, **strides)

    def gradient(self, **strides: int) -> At:
        """Return where the first vector of its gradient lies."""
        if self.bank is None:
            return at(f"gradient {self.buffer.number}", 0, **strides)
        return at(f"bank {GRADIENT_OF[self.bank]}", self.base, **strides)

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
        self._builder, self.shapes = builder, shapes
        self.blocks: list[Block] = []
        self._of: dict[tuple[str, int], Block] = {}

    def place(self, name, axes=None, rows=None, group_rows=None, part=None, added=False) -> Block:
        """Make room for a parameter, or for its rows `part`.

        Parameters
        ----------
        added : bool
            Whether gradients are added to what is there, or written for the tokens of the sample only.
        """
        if (name, (part or (0,))[0]) in self._of:
            return self._of[name, (part or (0,))[0]]  # of two layers
        shape = self.shapes[name]
        axes = tuple(range(len(shape))) if axes is None else axes
        columns = shape[axes[-1]]
        all_rows = int(np.prod(shape)) // columns
        first, last = part or (0, all_rows)
        last = min(last, all_rows)
        rows = last - first if rows is None else rows
        group_rows = rows if group_rows is None else group_rows
        vectors = -(-(last - first) // rows) * group_rows * vectors_for(columns)
        buffer = self._builder.new_buffer(name, vectors, is_parameter=True, is_added=added)
        block = Block(name, shape, axes, buffer, columns, rows, group_rows, first, last)
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
        tensors, offset = {name: np.zeros(shape, np.float32) for name, shape in self.shapes.items()}, 0
        for block in self.blocks:
            block.read(memory[offset : offset + block.vectors], tensors[block.name])
            offset += block.vectors
        return tensors
