"""One instruction of the training processor: an affine loop nest over banks of vectors (docs/processor.md)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import numpy as np
from typing_extensions import Self

from bttlab.compiler.machine import M

UNIT_NAMES = ("engine 0", "engine 1", "drain 0", "drain 1", "vector", "shuffle", "update")
# Numbers of the operands in banks and operand buffers that the steps of each unit read, and those that they write.
READ = ((0, 1, 2, 3), (0, 1, 2, 3), (), (), (0, 1, 2), (1,), (0, 1, 2, 3))
WRITTEN = ((4, 5), (4, 5), (4,), (4,), (3, 4), (4, 5), (0, 1, 2, 3))


class Register(NamedTuple):
    """A number that depends on the sample's length: clip((tokens + offset) >> shift, low, high)."""

    offset: int
    shift: int
    low: int
    high: int

    def at(self, tokens: int | np.ndarray) -> int | np.ndarray:
        """Return its value for a sample of `tokens` tokens; an array for an array of lengths."""
        if isinstance(tokens, np.ndarray):
            return np.clip((tokens + self.offset) >> self.shift, self.low, self.high)
        return min(max((tokens + self.offset) >> self.shift, self.low), self.high)

    def __add__(self, number: int) -> "Register":
        return Register(self.offset + (number << self.shift), self.shift, self.low + number, self.high + number)

    def __sub__(self, number: int) -> "Register":
        return self + -number

    def clipped(self, low: int, high: int) -> "Register":
        return self._replace(low=min(max(self.low, low), high), high=max(min(self.high, high), low))


Bound = int | Register


def value_of(bound: Bound, tokens: int | np.ndarray) -> int | np.ndarray:
    """Return a bound's value for a sample of `tokens` tokens; an array for an array of lengths."""
    return bound.at(tokens) if isinstance(bound, Register) else bound


def max_of(bound: Bound) -> int:
    return bound.high if isinstance(bound, Register) else bound


def min_of(bound: Bound) -> int:
    return bound.low if isinstance(bound, Register) else bound


def bound_of_part(bound: Bound, first: int, size: int) -> Bound:
    """Return the bound of the part of a loop that has its indices from `first` to before `first + size`."""
    if isinstance(bound, int):
        return min(max(bound - first, 0), size)
    return (bound - first).clipped(0, size)


BANK, OPERANDS, STATISTIC, SUMS = "bank", "buffer", "statistic", "sums"
VALUES, GRADIENT = "values", "gradient"


class Memory(NamedTuple):
    """A memory of the machine or, before banks are assigned, a `Buffer` or its gradient."""

    kind: str  # BANK, OPERANDS (an operand buffer), STATISTIC or SUMS; VALUES or GRADIENT of a `Buffer`
    number: int  # of the bank, the engine, the statistic or the buffer; of SUMS: 2 x engine + ping-pong buffer

    @classmethod
    def bank(cls, number: int) -> Self:
        return cls(BANK, number)

    @classmethod
    def operand_buffer(cls, engine: int) -> Self:
        return cls(OPERANDS, engine)

    def __str__(self) -> str:
        number = f"{self.number // 2} {self.number % 2}" if self.kind == SUMS else self.number
        return f"{self.kind} {number}"


class Level(NamedTuple):
    name: str
    bound: Bound  # number of steps
    # Number of active steps, the first ones; the others are idle. By default all are active.
    active: Bound | None = None

    @property
    def active_bound(self) -> Bound:
        """Number of active steps."""
        return self.bound if self.active is None else self.active


class TokenOffset(NamedTuple):
    """Token offset of an operand: the table, the loop over tokens, and the first group of eight tokens."""

    table: int
    level: str
    group: int = 0


class At(NamedTuple):
    """Place of an operand: a memory, a base address, and strides in vectors."""

    memory: Memory | None  # None for entries of the shuffle unit's tables and accumulators of a drain
    base: int
    strides: dict[str, int]  # stride by the loop's name; 0 for a loop without one
    token_offset: TokenOffset | None = None

    @property
    def number(self) -> int:
        """Number of its bank or operand buffer."""
        return self.memory.number if self.memory else 0

    @property
    def is_in_bank(self) -> bool:
        """True if it has the number of a bank."""
        return self.memory is not None and self.memory.kind == BANK

    def part(self, offset: int = 0, token_offset: TokenOffset | None = None, **strides: int) -> "At":
        """Return an operand that begins `offset` vectors after this one, with new strides."""
        return At(self.memory, self.base + offset, strides, token_offset)

    def at_step(self, loop: str, steps: int) -> "At":
        """Return the operand after a number of steps of a loop."""
        return self.offset_by(steps * self.strides.get(loop, 0))

    def offset_by(self, vectors: int) -> "At":
        """Return the operand with a number of vectors added to its base address."""
        return At(self.memory, self.base + vectors, self.strides, self.token_offset) if vectors else self


def at(memory: Memory | None, base: int, token_offset: TokenOffset | None = None, **strides: int) -> At:
    """Return the place of an operand, with strides by the loops' names."""
    return At(memory, base, strides, token_offset)


class _Accessed(NamedTuple):
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    both: tuple[tuple[int, bool], ...]


@cache  # there are few kinds of instructions, and thousands of calls for those of a program
def _accessed(unit: int, operands: tuple[int, ...], clears: bool) -> _Accessed:
    """Return the numbers of the operands that an instruction accesses."""
    kept = 1 if unit == M.UPDATE and not clears else None  # the gradient, if it is not cleared
    reads = tuple(number for number in READ[unit] if number in operands)
    writes = tuple(number for number in WRITTEN[unit] if number in operands and number != kept)
    return _Accessed(reads, writes, (*((number, False) for number in reads), *((number, True) for number in writes)))


@dataclass
class Instruction:
    """An instruction with named loops and operands; `encode` returns its 64 fields."""

    unit: int
    operation: int
    loops: tuple[Level, ...]  # outermost first; at most four
    operands: dict[int, At]  # operands by number
    label: tuple[str, ...] = ("", "", "")  # stage, layer and description, for listings and errors
    count: Bound = 0
    immediates: tuple = ()  # Floats, or ("scalar", number) of the sample's record
    depth: tuple[str, ...] = ()  # loops of the depth mask: those that a sum runs over
    # The accumulator index restarts whenever this loop advances; by default it never does.
    accumulator_loop: str | None = None
    row: tuple[str, int] | None = None  # loop of the row level, and row base
    function: int = 0  # number of the function F of the vector unit
    flags: int = 0
    vector_loop: str | None = None  # the loop that counts the vectors of a row; it determines which lanes are valid
    node: int | None = None  # number of the graph's operation that it belongs to; None for transfers and clears
    after_end: list[int] = field(default_factory=lambda: [0] * M.UNITS)
    after_drain: list[int] = field(default_factory=lambda: [0] * M.UNITS)
    after_begin: list[int] = field(default_factory=lambda: [0] * M.UNITS)

    def __post_init__(self) -> None:
        if len(self.loops) > M.LEVELS:
            raise ValueError(f"{self.label}: {len(self.loops)} loops; an instruction has {M.LEVELS}")

    def copy(self, **fields) -> Self:
        """Return a copy with other values of some fields; it shares the others' lists and dictionaries."""
        result = object.__new__(type(self))
        vars(result).update(vars(self), **fields)
        return result

    def level(self, name: str) -> int:
        """Return the level of a loop; unused levels are the outermost."""
        names = [loop.name for loop in self.loops]
        return M.LEVELS - len(names) + names.index(name)

    def steps(self, tokens: int | np.ndarray) -> int | np.ndarray:
        """Return its number of steps, idle ones included, for a sample of `tokens` tokens, or for several lengths."""
        product = 1
        for loop in self.loops:
            product *= value_of(loop.bound, tokens)
        return product

    def grid(self, tokens: int) -> list[np.ndarray]:
        bounds = [value_of(loop.bound, tokens) for loop in self.loops]
        return list(np.indices(bounds).reshape(len(bounds), -1))

    def accumulators(self, indices: list[np.ndarray], tokens: int) -> np.ndarray:
        """Return the accumulator index of each step: steps since the accumulator loop last advanced."""
        inner = 1
        for loop in reversed(self.loops):
            if loop.name == self.accumulator_loop:
                break
            inner *= value_of(loop.bound, tokens)
        return np.arange(len(indices[0])) % max(inner, 1)

    @property
    def _accessed(self) -> _Accessed:
        return _accessed(self.unit, tuple(self.operands), bool(self.flags & M.CLEAR))

    def reads(self) -> Sequence[int]:
        """Return the numbers of operands that are read from banks and operand buffers."""
        return self._accessed.reads

    def writes(self) -> Sequence[int]:
        """Return the numbers of operands that are written to banks and operand buffers."""
        return self._accessed.writes

    def accessed(self) -> Sequence[tuple[int, bool]]:
        """Return the number of each operand that is accessed, and whether it is written: reads, then writes."""
        return self._accessed.both

    @property
    def engine(self) -> int:
        """Number of the engine, if it is an engine's instruction or a drain's."""
        return self.unit % M.ENGINES

    @property
    def is_drain(self) -> bool:
        return self.unit in (M.DRAIN_0, M.DRAIN_1)

    @property
    def is_reduce(self) -> bool:
        return self.unit <= M.ENGINE_1 and self.operation == M.REDUCE

    @property
    def accumulator_count(self) -> int:
        """Number of accumulators that its unit has."""
        return M.ACCUMULATORS if self.unit <= M.ENGINE_1 else M.ROW_ACCUMULATORS

    def active(self, indices: list[np.ndarray], tokens: int) -> np.ndarray:
        """Return which steps are not idle, from the index of each loop at each step."""
        bounds = [value_of(loop.active_bound, tokens) for loop in self.loops]
        return np.all([index < bound for index, bound in zip(indices, bounds, strict=True)], axis=0)

    @property
    def most_accumulators(self) -> int:
        """Largest accumulator index, plus one."""
        count = steps = 1
        for loop in reversed(self.loops):
            if loop.name == self.accumulator_loop:
                break
            count += (max_of(loop.active_bound) - 1) * steps
            steps *= max_of(loop.bound)
        return count

    def unreached(self) -> Iterator[tuple[int, str]]:
        """Yield the number of each operand whose bank its port does not reach, and an error message."""
        for number, stores in self.accessed():
            operand = self.operands[number]
            if not operand.is_in_bank:
                continue
            port = M.reach(self.unit, number, stores)
            if operand.number not in port.banks:
                reached = ", ".join(map(str, port.banks))
                kind = "writes" if stores else "reads"
                text = f"operand {number} {kind} {operand.memory}, {port.name} reaches banks {reached}"
                yield number, text


def encode(instruction: Instruction, code_of, immediate_of) -> np.ndarray:
    """Return an instruction's fields, uint16 of shape (64,).

    `code_of`, `immediate_of`: map a bound and an immediate to their codes.
    """
    fields = [0] * M.INSTRUCTION_FIELDS
    loops = (Level("", 1),) * (M.LEVELS - len(instruction.loops)) + tuple(instruction.loops)
    fields[M.FIELD_OPERATION] = instruction.unit | instruction.operation << 4
    flags = instruction.flags
    if instruction.vector_loop is not None:
        flags |= instruction.level(instruction.vector_loop) << M.VECTOR_LEVEL_SHIFT
    tables: list[int] = []
    for number, operand in instruction.operands.items():
        first = M.FIELD_OPERAND + number * (2 + M.LEVELS)
        is_of_rows = instruction.unit == M.VECTOR and number == 5  # rows of all statistics: it names the function
        where = 1 << 15 | (instruction.function if is_of_rows else operand.number)
        if operand.token_offset is not None:
            if operand.token_offset.table not in tables:
                tables.append(operand.token_offset.table)
            where |= (1 + tables.index(operand.token_offset.table)) << 8 | operand.token_offset.group << 10
            flags |= instruction.level(operand.token_offset.level) << M.OFFSET_LEVEL_SHIFT
        fields[first] = where
        fields[first + 1] = operand.base
        for name, stride in operand.strides.items():
            fields[first + 2 + instruction.level(name)] = stride
    if len(tables) > 2:
        raise ValueError(f"{instruction.label}: {len(tables)} tables of token offsets; an instruction has two")
    for table, shift in zip(tables, (M.OFFSET_A_SHIFT, M.OFFSET_B_SHIFT), strict=False):
        flags |= table << shift
    fields[M.FIELD_FLAGS] = flags
    fields[M.FIELD_AFTER_END : M.FIELD_AFTER_END + M.UNITS] = instruction.after_end
    # Both share a field, which is enough: a unit that has begun an instruction has ended all those before it.
    fields[M.FIELD_AFTER_DRAIN : M.FIELD_AFTER_DRAIN + M.UNITS] = [
        1 << 15 | begun if begun > drained else drained
        for begun, drained in zip(instruction.after_begin, instruction.after_drain, strict=True)
    ]
    for level, loop in enumerate(loops):
        fields[M.FIELD_BOUND + level] = code_of(loop.bound)
        fields[M.FIELD_ACTIVE + level] = code_of(loop.active_bound)
    fields[M.FIELD_COUNT] = code_of(instruction.count)
    for number, immediate in enumerate(instruction.immediates):
        fields[M.FIELD_IMMEDIATE + number] = immediate_of(immediate)
    row_loop, row_base = instruction.row or (None, 0)
    row = instruction.level(row_loop) if row_loop is not None else 0
    mask = sum(1 << instruction.level(name) for name in instruction.depth)
    accumulator = 7 if instruction.accumulator_loop is None else instruction.level(instruction.accumulator_loop)
    fields[M.FIELD_ROW] = row | (row_base & 63) << 2 | mask << 8 | accumulator << 12
    return (np.array(fields) & 0xFFFF).astype(np.uint16)
