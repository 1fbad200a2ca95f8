"""What the steps of an instruction access: for each operand a box of loop indices, and strides.

This is the only place that says which steps of a unit read and write what. Waits follow from intervals of addresses and
from comparing the loops of two accesses (`dependencies`); the check of hazards enumerates the same steps (`hazards`).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from bttlab.compiler.instruction import (
    STATISTIC,
    SUMS,
    At,
    Bound,
    Instruction,
    Level,
    Memory,
    TokenOffset,
    max_of,
    min_of,
    value_of,
)
from bttlab.compiler.machine import M

# Statistics that each operation of the vector unit reads, and those that it writes.
STATISTICS_READ = {
    M.VARIANCE: (0,),
    M.NORMALIZE: (0, 1),
    M.NORM_BACK: (1, 2, 3),
    M.EXPONENT: (0,),
    M.SCALE: (1,),
    M.LOSS_BACK: (1,),
    M.SOFTMAX_BACK: (2,),
}
STATISTICS_WRITTEN = {
    M.SUM: (0,),
    M.VARIANCE: (1,),
    M.NORM_SUMS: (2, 3),
    M.MAXIMUM: (0,),
    M.EXPONENT: (1,),
    M.DOT: (2,),
}
ROW_SUMS = (*STATISTICS_WRITTEN, M.COLUMNS)  # operations of the vector unit that add to its accumulators


class Steps(NamedTuple):
    """The indices of a loop at which an operand is accessed, from `first` to before `end`; the loop has `bound`."""

    first: Bound
    end: Bound
    bound: Bound


class Access(NamedTuple):
    """The accesses of an instruction to a memory by one operand."""

    memory: Memory
    base: int
    steps: tuple[Steps, ...]
    strides: tuple[int, ...]  # by loop, outermost first
    writes: bool
    # Its number; None for sums and statistics, whose address is the accumulator index added to `base`.
    operand: int | None = None
    token_offset: TokenOffset | None = None
    rows: int = 0  # number of accumulators that may be accessed, if there is no operand

    def interval(self, offset_span: tuple[int, ...]) -> tuple[int, int]:
        """Return the lowest address, and one more than the highest, over all samples.

        `offset_span` has the largest token offset of each table.
        """
        if self.operand is None:
            return self.base, self.base + self.rows
        low = high = self.base
        for stride, (first, end, _) in zip(self.strides, self.steps, strict=True):
            if stride:
                least = min_of(first)
                ends = stride * least, stride * max(max_of(end) - 1, least)
                low, high = low + min(ends), high + max(ends)
        if self.token_offset is not None:
            high += offset_span[self.token_offset.table]
        return low, high + 1

    def addresses(self, instruction: Instruction, indices: list[np.ndarray], tokens: int, offsets=None) -> np.ndarray:
        """Return the address at each step; `offsets` are the sample's tables of token offsets, (4, tokens)."""
        if self.operand is None and not self.strides:
            return self.base + instruction.accumulators(indices, tokens)
        address = np.full(len(indices[0]) if indices else 1, self.base)
        for index, stride in zip(indices, self.strides, strict=True):
            address = address + index * stride
        if self.token_offset is not None:
            level = [loop.name for loop in instruction.loops].index(self.token_offset.level)
            token = np.minimum(8 * self.token_offset.group + indices[level], offsets.shape[1] - 1)
            address = address + offsets[self.token_offset.table][token]
        return address & 0xFFFF

    def acts(self, indices: list[np.ndarray], tokens: int) -> np.ndarray:
        """Return which steps make the access, from the index of each loop at each step."""
        acting = np.ones(len(indices[0]) if indices else 1, bool)
        for (first, end, _), index in zip(self.steps, indices, strict=True):
            acting &= (index >= value_of(first, tokens)) & (index < value_of(end, tokens))
        return acting


def accesses(instruction: Instruction) -> Iterator[Access]:
    """Yield an instruction's accesses: reads, then writes, then sums and statistics."""
    yield from accesses_of_vectors(instruction)
    yield from accesses_of_sums(instruction)


def accesses_of_vectors(instruction: Instruction) -> Iterator[Access]:
    """Yield an instruction's accesses to banks, operand buffers and statistics."""
    unit, operation, loops, depth = instruction.unit, instruction.operation, instruction.loops, instruction.depth
    reading = writing = adding = active = _active(instruction)  # steps that read, write, and complete the sum of a row
    if unit == M.SHUFFLE:  # block b is read while block b - 1 is written
        reading = (Steps(0, loops[0].bound - 1, loops[0].bound), *active[1:])
        blocks, *between = (Steps(0, loop.bound, loop.bound) for loop in loops[:-1])
        writing = (blocks._replace(first=1), *between, Steps(0, instruction.count, loops[-1].bound))
    elif instruction.is_reduce:  # the last step of the depth, the fold, reads sums and addend
        reading = _at_depth(active, instruction, lambda s: s._replace(end=s.bound - 1))
        writing = _at_depth(active, instruction, lambda s: s._replace(first=s.bound - 1))
    elif unit == M.VECTOR and depth:  # statistics, and the sums of COLUMNS, are written when the sum is complete
        adding = _at_depth(active, instruction, lambda s: s._replace(first=s.end - 1))
        writing = adding if operation == M.COLUMNS else active
    for number, writes in instruction.accessed():
        operand = instruction.operands[number]
        is_folded = writes or (unit <= M.ENGINE_1 and number == 3)
        strides = _strides(operand, loops)
        steps = writing if is_folded else reading
        yield Access(operand.memory, operand.base, steps, strides, writes, number, operand.token_offset)
    if unit == M.VECTOR:
        base = instruction.operands[5].base if 5 in instruction.operands else 0
        for numbers, steps, writes in ((STATISTICS_READ, active, False), (STATISTICS_WRITTEN, adding, True)):
            for number in numbers.get(operation, ()):
                rows = instruction.most_accumulators
                yield Access(Memory(STATISTIC, number), base, steps, (), writes, rows=rows)


def accesses_of_sums(instruction: Instruction) -> Iterator[Access]:
    """Yield an instruction's access to the sums of an engine: the ping-pong buffer is decided with the order."""
    if not uses_sums(instruction):
        return
    strides, adding = (), _active(instruction)
    if instruction.is_drain:
        strides = _strides(instruction.operands[0], instruction.loops)
    elif instruction.is_reduce:  # the last step of the depth is the fold
        adding = _at_depth(adding, instruction, lambda s: s._replace(end=s.bound - 1))
    memory = Memory(SUMS, 2 * instruction.engine + bool(instruction.flags & M.PONG))
    yield Access(memory, 0, adding, strides, not instruction.is_drain, rows=1)


def _active(instruction: Instruction) -> tuple[Steps, ...]:
    return tuple([Steps(0, loop.active_bound, loop.bound) for loop in instruction.loops])


def _strides(operand: At, loops: Sequence[Level]) -> tuple[int, ...]:
    return tuple([operand.strides.get(loop.name, 0) for loop in loops])


def _at_depth(steps: tuple[Steps, ...], instruction: Instruction, change: Callable[[Steps], Steps]) -> tuple:
    """Return the steps with those of the depth's loops changed."""
    loops = zip(steps, instruction.loops, strict=True)
    return tuple(change(of) if loop.name in instruction.depth else of for of, loop in loops)


def asks_in_fold(instruction: Instruction, number: int | None) -> bool:
    """Return True for the stream of a REDUCE: in a fold the engine requests its next vector, and ignores it."""
    return instruction.is_reduce and number == 1


def uses_sums(instruction: Instruction) -> bool:
    """Return True if an instruction adds to the sums of an engine or drains them."""
    return instruction.is_drain or (instruction.unit <= M.ENGINE_1 and instruction.operation != M.EXPAND)


def adds_up(instruction: Instruction) -> bool:
    """Return True if an instruction adds to accumulators."""
    is_row_sum = instruction.unit == M.VECTOR and instruction.operation in ROW_SUMS
    return is_row_sum or (uses_sums(instruction) and not instruction.is_drain)


def drains_of(instructions: Sequence[Instruction]) -> dict[int, list[int]]:
    """Return the numbers of the drains after each ACCUMULATE, by its number."""
    drains: dict[int, list[int]] = {}
    filled: dict[int, int] = {}  # last ACCUMULATE of each engine
    for i, instruction in enumerate(instructions):
        if instruction.is_drain:
            drains[filled[instruction.engine]].append(i)
        elif instruction.unit <= M.ENGINE_1 and instruction.operation == M.ACCUMULATE:
            filled[instruction.engine] = i
            drains[i] = []
    return drains
