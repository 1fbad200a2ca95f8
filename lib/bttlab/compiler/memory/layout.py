"""Layout of parameters: their places in the banks, their elements in vectors; packing and unpacking for transfers."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from bttlab.compiler.buffers import GRADIENT_OF, MOMENTS, Buffer
from bttlab.compiler.builder import Builder, vectors_for
from bttlab.compiler.instruction import At, Memory, at
from bttlab.compiler.machine import M

LANES = M.LANES

# Order of the axes of a linear layer's cores at each end of the train; the last axis is along the lanes. `near` is the
# core at the middle rank, `far` the one at the end: L = (G1 G2) G3 and R = G4 (G5 G6).
OUT_AXES = {"near": (2, 1, 0), "middle": (2, 1, 0), "far": (2, 0, 1)}
IN_AXES = {"near": (0, 1, 2), "middle": (0, 1, 2), "far": (0, 2, 1)}


@dataclass(frozen=True)
class Block:
    """A matrix or a parameter, or a part of its rows, in a bank.

    `axes`: order of its axes there; the last one are columns, along the lanes, the others count rows.
    `rows`: rows of a group of the parameter.
    `group_rows`: distance in the bank, in rows, from group to group; rows that are not used are 0.
    `first`, `last`: range of the rows of each group that the block contains.
    `offset`: its first vector in the buffer, which several blocks may share.
    `is_repeated`: whether each element of the parameter has a vector of its own, of equal lanes.
    """

    name: str
    buffer: Buffer
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    rows: int
    group_rows: int
    first: int
    last: int
    offset: int = 0
    is_repeated: bool = False

    @property
    def bank(self) -> int:
        return self.buffer.bank

    @property
    def base(self) -> int:
        return self.buffer.base + self.offset

    @property
    def columns(self) -> int:
        return 1 if self.is_repeated else self.shape[self.axes[-1]]

    @property
    def row_vectors(self) -> int:
        return vectors_for(self.columns)

    @property
    def groups(self) -> int:
        return math.prod(self.shape) // (self.columns * self.rows)

    @property
    def vectors(self) -> int:
        return self.groups * self.group_rows * self.row_vectors

    def where(self, **strides: int) -> At:
        """Return the place of its first vector, with strides by the loops' names."""
        if self.bank is None:
            return at(self.buffer.memory, self.offset, **strides)
        return at(Memory.bank(self.bank), self.base, **strides)

    def gradient(self, **strides: int) -> At:
        """Return the place of the first vector of its gradient."""
        if self.bank is None:
            return at(self.buffer.memory_of_gradient, self.offset, **strides)
        return at(Memory.bank(GRADIENT_OF[self.bank]), self.base, **strides)

    def write(self, memory: np.ndarray, value: np.ndarray) -> None:
        """Write the parameter to its vectors, float32 of shape (vectors, LANES)."""
        lanes = LANES if self.is_repeated else self.columns
        self._in_bank(memory, lanes)[...] = self._in_parameter(value.transpose(self.axes))

    def read(self, memory: np.ndarray, into: np.ndarray) -> None:
        """Copy the block's rows from its vectors to the parameter `into`."""
        shape = tuple(self.shape[axis] for axis in self.axes)
        moved = np.ascontiguousarray(into.transpose(self.axes))
        self._in_parameter(moved)[...] = self._in_bank(memory, self.columns)
        into[...] = moved.reshape(shape).transpose(np.argsort(self.axes))

    def _in_bank(self, memory: np.ndarray, columns: int) -> np.ndarray:
        """Return its elements in the bank's vectors, of shape (groups, rows, columns)."""
        vectors = memory.reshape(self.groups, self.group_rows, self.row_vectors * LANES)
        return vectors[:, : self.last - self.first, :columns]

    def _in_parameter(self, ordered: np.ndarray) -> np.ndarray:
        """Return its elements in the parameter, whose axes have the bank's order; of the same shape."""
        return ordered.reshape(self.groups, self.rows, self.columns)[:, self.first : self.last]


@dataclass(frozen=True)
class TokenTable:
    """How the rows of an embedding follow from token ids: by token offsets, in four tables.

    `digits`: number of values of each of three digits of a token id; the rest is 1 for a table with fewer.
    `slice_vectors`: for each table of token offsets, the vectors of a slice: of the digits, and of the last one again.
    """

    digits: tuple[int, int, int]
    slice_vectors: tuple[int, int, int, int]

    @property
    def rows(self) -> int:
        return math.prod(self.digits)

    @property
    def stride(self) -> int:
        """Distance between token ids that differ in the first digit alone."""
        return math.prod(self.digits[1:])

    @property
    def slice_rows(self) -> tuple[int, ...]:
        """Number of slices, for each table of token offsets."""
        return (*self.digits, self.digits[-1])

    @property
    def offset_span(self) -> tuple[int, ...]:
        """Largest token offset of each table, in vectors."""
        return tuple(w * (n - 1) for w, n in zip(self.slice_vectors, self.slice_rows, strict=True))

    def token_offsets(self, token_ids: np.ndarray) -> np.ndarray:
        """Return the token offsets of token ids, int64 of shape (4, tokens)."""
        i1, i2, i3 = np.unravel_index(token_ids, self.digits)
        return np.stack([i * w for i, w in zip((i1, i2, i3, i3), self.slice_vectors, strict=True)])


def matrix_block(name: str, buffer: Buffer, rows: int, columns: int) -> Block:
    return Block(name, buffer, (rows, columns), (0, 1), rows, rows, 0, rows)


def pack(values: Iterable[tuple[Block, np.ndarray | None]]) -> np.ndarray:
    """Return blocks in the format of LOAD, float32 of shape (vectors, LANES); a block without a value is 0."""
    parts = []
    for block, value in values:
        parts.append(np.zeros((block.vectors, LANES), np.float32))
        if value is not None:
            block.write(parts[-1], np.asarray(value, np.float32).reshape(block.shape))
    return np.concatenate(parts)


def unpack(memory: np.ndarray, tensors: Iterable[tuple[Block, np.ndarray | None]]) -> None:
    first = 0
    for block, tensor in tensors:
        if tensor is not None:
            block.read(memory[first : first + block.vectors], tensor)
        first += block.vectors


@dataclass(frozen=True, eq=False)
class Layout:
    """The parameters of a model in the banks.

    `constants`: values that are loaded with the parameters, and that have no gradient.
    `copies`: parameters of which a further use has a copy of its own, by the copy's name.
    `folded`: values of frozen parameters of which constants are functions; the banks may not have these parameters.
    `partial`: parameters of which the banks have some rows alone, or none: no sample of the program reads the others
    there.
    `in_records`: the frozen table of which the rows of a sample's tokens come in its record; "" if it is in a bank.
    `blocks`: in the order in which LOAD and STORE transfer them.
    """

    shapes: Mapping[str, tuple[int, ...]]
    constants: Mapping[str, np.ndarray]
    copies: Mapping[str, str]
    folded: Mapping[str, np.ndarray]
    partial: frozenset[str]
    blocks: Sequence[Block]
    in_records: str = ""

    @cached_property
    def vectors(self) -> int:
        return sum(block.vectors for block in self.blocks)

    @property
    def token_vectors(self) -> int:
        """Vectors of each token in a sample's record."""
        return vectors_for(self.shapes[self.in_records][1]) if self.in_records else 0

    @property
    def has_moments(self) -> bool:
        """True if the banks have space for the moments of momentum and AdamW; else only SGD trains the model."""
        return self.vectors <= min(M.banks[bank].depth for bank in MOMENTS)

    def has_constants_of(self, other: "Layout") -> bool:
        """Return whether constants and folded parameters are equal; they are loaded with parameters, not a program."""
        return all(
            mine.keys() == others.keys() and all(np.array_equal(array, others[name]) for name, array in mine.items())
            for mine, others in ((self.constants, other.constants), (self.folded, other.folded))
        )

    def pack(self, tensors: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the parameters in the format of LOAD, float32 of shape (vectors, LANES)."""
        values = {**tensors, **{copy: tensors[name] for copy, name in self.copies.items()}, **self.constants}
        return pack((block, values[block.name]) for block in self.blocks)

    def mask(self, chosen: Callable[[str], bool]) -> np.ndarray:
        """Return where a block in the format of LOAD has elements of chosen parameters, bool of shape (vectors, LANES).

        `chosen` gets a parameter's name; constants are not parameters.
        """
        names = {**{name: name for name in self.shapes}, **self.copies}  # a copy is trained as its parameter
        taken = [block.name in names and chosen(names[block.name]) for block in self.blocks]
        ones = ((b, np.ones(b.shape) if is_taken else None) for b, is_taken in zip(self.blocks, taken, strict=True))
        return pack(ones) > 0

    def unpack(self, memory: np.ndarray, loaded: Mapping[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
        """Return the parameters from the format of STORE; rows outside the banks are those of `loaded`, by default 0.

        `loaded`: the values of `partial`, as they were loaded.
        """
        tensors = {name: np.zeros(shape, np.float32) for name, shape in self.shapes.items()}
        for name in self.partial & (loaded or {}).keys():
            tensors[name][...] = loaded[name]
        unpack(memory, ((block, tensors.get(block.name)) for block in self.blocks))
        return tensors


class Region(NamedTuple):
    """Vectors of a bank that have one purpose for the whole program, or from the forward to the backward pass."""

    bank: int
    first: int
    vectors: int
    purpose: str  # "parameters", "gradients", "optimizer state" or "activations"


class LayoutBuilder:
    """The layout of a model under construction: `place` allocates blocks, `finished` is the result."""

    def __init__(
        self,
        builder: Builder,
        shapes: Mapping[str, tuple[int, ...]],
        constants: Mapping[str, np.ndarray],
        copies: Mapping[str, str],
        folded: Mapping[str, np.ndarray] | None = None,
        rows_read: Mapping[str, tuple[int, int]] | None = None,
    ):
        self._builder, self.constants, self.copies, self.folded = builder, constants, copies, folded or {}
        self._rows_read = rows_read or {}  # of parameters of which the program reads some rows alone
        self.shapes = {name: shape for name, shape in shapes.items() if name not in self.copies}
        self.in_records = ""
        self.blocks: list[Block] = []
        self._of: dict[tuple[str, int], Block] = {}

    @property
    def finished(self) -> Layout:
        partial, blocks = frozenset(self._rows_read), tuple(self.blocks)
        if self.in_records:
            partial |= {self.in_records}
        return Layout(self.shapes, self.constants, self.copies, self.folded, partial, blocks, self.in_records)

    @property
    def placed(self) -> Layout:
        """The layout with buffers of its own, which stay where they are if banks are searched again."""
        buffers = {block.buffer: copy(block.buffer) for block in self.blocks}
        return replace(self.finished, blocks=tuple(replace(b, buffer=buffers[b.buffer]) for b in self.blocks))

    def place(
        self,
        name,
        axes=None,
        rows=None,
        group_rows=None,
        part=None,
        added=False,
        behind: Block | None = None,
        is_repeated=False,
    ) -> Block:
        """Allocate a block for a parameter, or for the rows `part` of each of its groups.

        By default a part is all rows that the program reads.
        `added`: whether gradients are accumulated, or written for the tokens of the sample only; the update clears
        them.
        `behind`: the block whose buffer it extends; by default it has a buffer of its own.
        `is_repeated`: as for `Block`; the parameter may have no axes.
        """
        part = part or self._rows_read.get(self.copies.get(name, name))
        if (name, (part or (0,))[0]) in self._of:
            return self._of[name, (part or (0,))[0]]  # two layers share it
        shape = self.constants[name].shape if name in self.constants else self.shapes[self.copies.get(name, name)]
        axes = tuple(range(len(shape))) if axes is None else axes
        rows = math.prod(shape) // (1 if is_repeated else shape[axes[-1]]) if rows is None else rows
        first, last = part or (0, rows)
        last = min(last, rows)
        group_rows = last - first if group_rows is None else group_rows
        if behind is None:
            kind = (
                {"is_persistent": True} if name in self.constants else {"is_parameter": True, "is_accumulated": added}
            )
            buffer = self._builder.new_buffer(name, 0, **kind)
        else:
            buffer = behind.buffer
        block = Block(name, buffer, shape, axes, rows, group_rows, first, last, buffer.vectors, is_repeated)
        buffer.vectors += block.vectors
        self.blocks.append(block)
        self._of[name, first] = block
        return block

    def uses(self) -> list[list[Block]]:
        """Return the blocks of each part of a parameter that has copies, the parameter's own first."""
        groups: dict[tuple[str, int], list[Block]] = {}
        for block in self.blocks:
            groups.setdefault((self.copies.get(block.name, block.name), block.first), []).append(block)
        return [sorted(group, key=lambda block: block.name in self.copies) for group in groups.values() if group[1:]]
