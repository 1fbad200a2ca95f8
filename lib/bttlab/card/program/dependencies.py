"""Which instruction must wait for which: from the words that they read and write, and from the ports that they use.

An instruction waits until another has *drained* (its results are there) to read what that one writes, and until it has
*ended* (it asks for nothing more) to write what that one reads or writes, or to use its ports. Where one reads step
by step
what the other writes step by step, it is *chained*: it waits only until the other has begun, and a latency longer.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bttlab.card.program.instruction import (
    ACCUMULATE,
    DRAIN_0,
    ENGINE_1,
    EXPAND,
    MACHINE,
    UNITS,
    VECTOR,
    Instruction,
    Register,
    most_of,
)

# Statistics that each operation of the vector unit reads, and those that it writes.
STATISTICS_READ = {
    MACHINE.VARIANCE: (0,),
    MACHINE.NORMALIZE: (0, 1),
    MACHINE.NORM_BACK: (1, 2, 3),
    MACHINE.EXPONENT: (0,),
    MACHINE.SCALE: (1,),
    MACHINE.LOSS_BACK: (1,),
    MACHINE.SOFTMAX_BACK: (2,),
}
STATISTICS_WRITTEN = {
    MACHINE.SUM: (0,),
    MACHINE.VARIANCE: (1,),
    MACHINE.NORM_SUMS: (2, 3),
    MACHINE.MAXIMUM: (0,),
    MACHINE.EXPONENT: (1,),
    MACHINE.DOT: (2,),
}


class Access(NamedTuple):
    """A memory, the addresses from low to before high, whether they are written, and the operand that does it."""

    memory: str
    low: int
    high: int
    writes: bool
    operand: int | None = None


END, CHAIN, DRAIN = range(3)


class Wait(NamedTuple):
    """An earlier instruction that one waits for, and how long: END, CHAIN or DRAIN."""

    instruction: int
    until: int


def accesses(instruction: Instruction, slice_span: tuple[int, ...], sums: bool = True) -> Iterator[Access]:
    """Yield what an instruction reads and writes, of banks, held memories, statistics and, if asked for, sums."""
    for number in instruction.reads():
        operand = instruction.operands[number]
        yield Access(operand.memory, *instruction.span(number, slice_span), False, number)
    for number in instruction.writes():
        operand = instruction.operands[number]
        yield Access(operand.memory, *instruction.span(number, slice_span), True, number)
    side = int(bool(instruction.flags & MACHINE.SIDE))
    if not sums and instruction.unit != VECTOR:
        return
    if instruction.unit <= ENGINE_1 and instruction.operation != EXPAND:
        yield Access(f"sums {instruction.unit} {side}", 0, 1, True)
    elif instruction.unit in (DRAIN_0, DRAIN_0 + 1):
        yield Access(f"sums {instruction.unit - DRAIN_0} {side}", 0, 1, False)
    elif instruction.unit == VECTOR:
        base = instruction.operands[5].base if 5 in instruction.operands else 0
        rows = 1
        for loop in reversed(instruction.loops):
            if loop.name == instruction.slot_loop:
                break
            rows *= most_of(loop.bound)
        for k in STATISTICS_READ.get(instruction.operation, ()):
            yield Access(f"statistic {k}", base, base + rows, False)
        for k in STATISTICS_WRITTEN.get(instruction.operation, ()):
            yield Access(f"statistic {k}", base, base + rows, True)


def has_ports(memory: str) -> bool:
    """Return whether several units share a memory's ports."""
    return memory.startswith(("bank", "held"))


def data_waits(instructions: Sequence[Instruction], slice_span: tuple[int, ...], sums: bool = True) -> list[list[Wait]]:
    """Return what each instruction waits for because of words, in the order of the list.

    Without `sums`, a drain waits for the one instruction whose sums it fetches, and nothing else is said of them: which
    side an engine sums on is free.
    """
    filled: dict[int, int] = {}  # the last instruction that an engine summed with for a drain
    history: dict[str, list[tuple[int, Access]]] = defaultdict(list)
    waits: list[list[Wait]] = []
    for i, instruction in enumerate(instructions):
        mine: dict[int, int] = {}
        touched = list(accesses(instruction, slice_span, sums))
        if not sums and instruction.unit in (DRAIN_0, DRAIN_0 + 1):
            mine[filled[instruction.unit - DRAIN_0]] = DRAIN
        elif not sums and instruction.unit <= ENGINE_1 and instruction.operation == ACCUMULATE:
            filled[instruction.unit] = i
        for access in touched:
            for j, other in history[access.memory]:
                if not (access.writes or other.writes) or access.low >= other.high or other.low >= access.high:
                    continue
                until = END
                if other.writes and not access.writes:
                    until = CHAIN if _step_by_step(instructions[j], other, instruction, access) else DRAIN
                mine[j] = max(mine.get(j, END), until)
        for access in touched:
            known = history[access.memory]
            if access.writes:  # what is wholly overwritten now, nobody needs to look at again
                known[:] = [
                    (j, o) for j, o in known if not (access.low <= o.low and o.high <= access.high and j in mine)
                ]
            known.append((i, access))
        waits.append([Wait(j, until) for j, until in sorted(mine.items())])
    return waits


def _step_by_step(writer: Instruction, written: Access, reader: Instruction, read: Access) -> bool:
    """Return whether a reader that begins with a writer reads each word in no earlier a step than it is written."""
    if written.operand is None or read.operand is None:
        return False
    if (writer.unit <= ENGINE_1 and writer.operation != EXPAND) or writer.unit not in (0, ENGINE_1, VECTOR):
        return False
    if writer.unit == VECTOR and writer.operation == MACHINE.COLUMNS:
        return False
    one, other = writer.loops, reader.loops
    if len(one) != len(other) or writer.operands[written.operand].memory.startswith("held"):
        return False
    for level, (a, b) in enumerate(zip(one, other, strict=True)):
        # Steps of all levels but the outermost are counted alike; the outermost of the reader may go further.
        if (a.bound != b.bound or a.acting != b.acting) and (
            level or isinstance(a.bound, Register) or not isinstance(b.bound, int)
        ):
            return False
        if level == 0 and isinstance(a.bound, int) and b.bound < a.bound:
            return False
    first, second = writer.operands[written.operand], reader.operands[read.operand]
    if first.base != second.base or first.slice or second.slice:
        return False
    return [first.strides.get(loop.name, 0) for loop in one] == [second.strides.get(loop.name, 0) for loop in other]


def set_waits(instructions: Sequence[Instruction], slice_span: tuple[int, ...]) -> None:
    """Set every instruction's `after` counts for the order that the list has."""
    waits = data_waits(instructions, slice_span)
    place = []  # of each instruction in its unit's stream, from 1
    counts = [0] * UNITS
    for instruction in instructions:
        counts[instruction.unit] += 1
        place.append(counts[instruction.unit])
    ports: dict[tuple[str, bool], dict[int, int]] = defaultdict(dict)  # the last user of each unit
    for i, instruction in enumerate(instructions):
        end, begin, drain = ([0] * UNITS for _ in range(3))
        for wait in waits[i]:
            unit = instructions[wait.instruction].unit
            counters = (end, begin, drain)[wait.until]
            if wait.until != END or unit != instruction.unit:
                counters[unit] = max(counters[unit], place[wait.instruction])
        for access in accesses(instruction, slice_span):
            if not has_ports(access.memory):
                continue
            users = ports[access.memory, access.writes]
            for unit, last in users.items():
                if unit != instruction.unit:
                    end[unit] = max(end[unit], last)
            users[instruction.unit] = place[i]
        instruction.after_end, instruction.after_begin, instruction.after_drain = end, begin, drain
