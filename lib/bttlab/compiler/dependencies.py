"""Waits of instructions for each other, from the vectors that they access and the ports that they use.

An instruction that reads vectors that another writes waits until that one has *drained*: its results are in the banks.
An instruction that writes vectors that another accesses, or uses the same ports, waits until that one has *ended*: it
makes no more requests. If one instruction reads vectors at least as slowly, and in the same order, as another writes
them, it is *chained* to it: it waits until LATENCY cycles after the other's begin.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from bttlab.compiler.instruction import (
    ACCUMULATE,
    DRAIN_0,
    ENGINE_1,
    EXPAND,
    REDUCE,
    SHUFFLE,
    UNITS,
    VECTOR,
    Bound,
    Instruction,
    Register,
    max_of,
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


class Access(NamedTuple):
    """An access to the addresses from `low` to before `high` of a memory, by an operand."""

    memory: str
    low: int
    high: int
    writes: bool
    operand: int | None = None


END, CHAIN, DRAIN = 1, 2, 4  # kinds of wait, combined by bitwise or
Waits = list[dict[int, int]]  # for each instruction: the kinds of wait, by the number of the instruction waited for


def accesses(
    instruction: Instruction, offset_span: tuple[int, ...], memories: Collection[str] | None = None
) -> Iterator[Access]:
    """Yield an instruction's accesses to some memories; by default to all, statistics included."""
    for writes, numbers in ((False, instruction.reads()), (True, instruction.writes())):
        for number in numbers:
            memory = instruction.operands[number].memory
            if memories is None or memory in memories:
                yield Access(memory, *instruction.span(number, offset_span), writes, number)
    if memories is None and instruction.unit == VECTOR:
        base = instruction.operands[5].base if 5 in instruction.operands else 0
        rows = steps = 1
        for loop in reversed(instruction.loops):
            if loop.name == instruction.accumulator_loop:
                break
            rows += (max_of(loop.active_bound) - 1) * steps
            steps *= max_of(loop.bound)
        for k in STATISTICS_READ.get(instruction.operation, ()):
            yield Access(f"statistic {k}", base, base + rows, False)
        for k in STATISTICS_WRITTEN.get(instruction.operation, ()):
            yield Access(f"statistic {k}", base, base + rows, True)


def _sums(instruction: Instruction) -> Iterator[Access]:
    """Yield an instruction's access to an engine's sums, as an engine or as a drain."""
    pong = int(bool(instruction.flags & M.PONG))
    if instruction.unit <= ENGINE_1 and instruction.operation != EXPAND:
        yield Access(f"sums {instruction.unit} {pong}", 0, 1, True)
    elif instruction.unit in (DRAIN_0, DRAIN_0 + 1):
        yield Access(f"sums {instruction.unit - DRAIN_0} {pong}", 0, 1, False)


def ports_of(instruction: Instruction) -> set[tuple[str, bool]]:
    """Return the shared ports that an instruction uses, as (memory, whether it is the store port)."""
    return {
        (instruction.operands[number].memory, writes)
        for writes, numbers in ((False, instruction.reads()), (True, instruction.writes()))
        for number in numbers
    }


def data_waits(instructions: Sequence[Instruction], offset_span: tuple[int, ...]) -> Waits:
    """Return the waits that data dependences cause: through vectors, and from an accumulation to its drains.

    Waits for a free ping-pong buffer of sums are not included: the scheduler still chooses the buffer.
    """
    waits = _conflicts(instructions, range(len(instructions)), (accesses(i, offset_span) for i in instructions))
    filled: dict[int, int] = {}  # last ACCUMULATE of each engine
    for i, instruction in enumerate(instructions):
        if instruction.unit in (DRAIN_0, DRAIN_0 + 1):
            waits[i][filled[instruction.unit - DRAIN_0]] = DRAIN
        elif instruction.unit <= ENGINE_1 and instruction.operation == ACCUMULATE:
            filled[instruction.unit] = i
    return waits


def _conflicts(
    instructions: Sequence[Instruction],
    order: Iterable[int],
    touched_by: Iterable[Iterable[Access]],
    known_waits: Waits | None = None,
) -> Waits:
    """Return the waits that conflicting accesses cause for instructions in an order, added to known waits."""
    known: dict[tuple[str, bool], list[tuple[int, int, int, Access]]] = defaultdict(list)  # readers, writers
    waits: Waits = [dict(mine) for mine in known_waits] if known_waits else [{} for _ in instructions]
    for i, of_one in zip(order, touched_by, strict=True):
        mine, instruction, touched = waits[i], instructions[i], list(of_one)
        for access in touched:
            memory, low, high, writes, _ = access
            for wrote in (False, True) if writes else (True,):
                later = DRAIN if wrote and not writes else END
                for j, first, last, other in known[memory, wrote]:
                    if low < last and first < high:
                        until = CHAIN if _can_chain(instructions[j], other, instruction, access) else later
                        mine[j] = mine.get(j, 0) | until
        for access in touched:
            memory, low, high, writes, _ = access
            if writes:  # later instructions need not wait for accesses that lie wholly within this write
                for one in (known[memory, False], known[memory, True]):
                    one[:] = [past for past in one if past[1] < low or high < past[2] or past[0] == i]
            known[memory, writes].append((i, low, high, access))
    return waits


class _AddressLevel(NamedTuple):
    """A loop of an operand's addresses: its active indices, its bound, and the stride in vectors."""

    active: Bound
    bound: Bound
    stride: int


def _address_levels(instruction: Instruction, access: Access, is_second: bool) -> list[_AddressLevel]:
    """Return the loops of an operand's addresses, outermost first, without loops of one step.

    Parameters
    ----------
    is_second : bool
        Whether the access is the later one of a pair. Its steps may come later than the result says, but not earlier.
    """
    operand = instruction.operands[access.operand]
    folds = instruction.unit <= ENGINE_1 and instruction.operation == REDUCE and access.operand in (0, 1)
    levels: list[_AddressLevel] = []
    for n, loop in enumerate(instruction.loops):
        active = loop.active_bound
        if (folds and loop.name in instruction.depth) or (instruction.unit == SHUFFLE and n == 0):
            active = loop.bound - 1  # the fold reads neither operand; the last block is only written
        if max_of(loop.bound) > 1:
            levels.append(_AddressLevel(active, loop.bound, operand.strides.get(loop.name, 0)))
    if is_second:  # repeated accesses come later
        levels = [level for level in levels if level.stride]
    merged: list[_AddressLevel] = []
    for level in levels:  # merge loops over adjacent rows
        outer = merged[-1] if merged else None
        whole = outer and _is_number(outer, level) and outer.stride == level.active * level.stride
        if whole and (is_second or level.active == level.bound):
            level = _AddressLevel(outer.active * level.active, outer.bound * level.bound, level.stride)
            merged.pop()
        merged.append(level)
    return merged


def _is_number(*levels: _AddressLevel) -> bool:
    return not any(isinstance(bound, Register) for level in levels for bound in level[:2])


def _at_least(one: Bound, other: Bound) -> bool:
    """Return True if a bound is at least as large as another for every length of the sample."""
    if isinstance(one, Register) and isinstance(other, Register):
        return one[:2] == other[:2] and one.low >= other.low and one.high >= other.high
    return one == other or (not isinstance(one, Register) and one >= max_of(other))


def _can_chain(first: Instruction, before: Access, second: Instruction, after: Access) -> bool:
    """Return True if the second instruction, begun with the first, would access no vector at an earlier step."""
    if before.operand is None or after.operand is None or first.operands[before.operand].memory.startswith("buffer"):
        return False
    if first.unit not in (0, ENGINE_1, VECTOR) or (first.unit <= ENGINE_1 and first.operation != EXPAND):
        return False
    if first.unit == VECTOR and first.operation == M.COLUMNS:
        return False
    if second.unit not in (0, ENGINE_1, VECTOR, SHUFFLE) or (second.unit == SHUFFLE and after.writes):
        return False
    one, other = first.operands[before.operand], second.operands[after.operand]
    if one.base != other.base or one.token_offset or other.token_offset:
        return False
    levels, others = _address_levels(first, before, False), _address_levels(second, after, True)
    if [(a.active, a.stride) for a in levels] != [(b.active, b.stride) for b in others]:
        return False
    # An iteration of an outer loop takes as many steps as its inner loops have.
    return all(_at_least(b.bound, a.bound) for a, b in zip(levels[1:], others[1:], strict=True))


def set_waits(
    instructions: Sequence[Instruction],
    offset_span: tuple[int, ...],
    order: Sequence[int] | None = None,
    known: Waits | None = None,
    memories: Collection[str] | None = None,
) -> None:
    """Set every instruction's `after` counts.

    Parameters
    ----------
    instructions : sequence of Instruction
    offset_span : tuple of int
        Largest token offset of each table.
    order : sequence of int, optional
        Order in which the instructions are sent; by default that of the list.
    known : Waits, optional
        Waits that are the same in every order.
    memories : collection of str, optional
        Banks whose conflicts are not complete in `known`; by default all memories.
    """
    order = range(len(instructions)) if order is None else order
    touched = ([*accesses(instructions[i], offset_span, memories), *_sums(instructions[i])] for i in order)
    waits = _conflicts(instructions, order, touched, known)
    place = [0] * len(instructions)  # position of each in its unit's sequence, from 1
    counts = [0] * UNITS
    ports: dict[tuple[str, bool], dict[int, int]] = defaultdict(dict)  # last instruction of each unit that uses a port
    for i in order:
        instruction = instructions[i]
        counts[instruction.unit] += 1
        place[i] = counts[instruction.unit]
        end, begin, drain = ([0] * UNITS for _ in range(3))
        for j, until in waits[i].items():
            unit = instructions[j].unit
            if until & DRAIN:
                drain[unit] = max(drain[unit], place[j])
                continue
            if until & CHAIN:
                begin[unit] = max(begin[unit], place[j])
            if until & END and unit != instruction.unit:
                end[unit] = max(end[unit], place[j])
        for port in ports_of(instruction):
            users = ports[port]
            for unit, last in users.items():
                if unit != instruction.unit:
                    end[unit] = max(end[unit], last)
            users[instruction.unit] = place[i]
        instruction.after_end, instruction.after_begin, instruction.after_drain = end, begin, drain
