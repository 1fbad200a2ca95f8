"""Which instruction must wait for which: from the words that they read and write, and from the ports that they use.

An instruction waits until another has *drained* (its results are there) to read what that one writes, and until it has
*ended* (it asks for nothing more) to write what that one reads or writes, or to use its ports.
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
    """A memory, the addresses from low to before high, and whether they are written."""

    memory: str
    low: int
    high: int
    writes: bool


class Wait(NamedTuple):
    """An earlier instruction that one waits for, and whether for its results."""

    instruction: int
    drained: bool


def accesses(instruction: Instruction, slice_span: tuple[int, ...], sums: bool = True) -> Iterator[Access]:
    """Yield what an instruction reads and writes, of banks, held memories, statistics and, if asked for, sums."""
    for number in instruction.reads():
        operand = instruction.operands[number]
        yield Access(operand.memory, *instruction.span(operand, slice_span), False)
    for number in instruction.writes():
        operand = instruction.operands[number]
        yield Access(operand.memory, *instruction.span(operand, slice_span), True)
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
        mine: dict[int, bool] = {}
        touched = list(accesses(instruction, slice_span, sums))
        if not sums and instruction.unit in (DRAIN_0, DRAIN_0 + 1):
            mine[filled[instruction.unit - DRAIN_0]] = True
        elif not sums and instruction.unit <= ENGINE_1 and instruction.operation == ACCUMULATE:
            filled[instruction.unit] = i
        for access in touched:
            for j, other in history[access.memory]:
                if not (access.writes or other.writes) or access.low >= other.high or other.low >= access.high:
                    continue
                needs_result = other.writes and not access.writes
                mine[j] = mine.get(j, False) or needs_result
        for access in touched:
            known = history[access.memory]
            if access.writes:  # what is wholly overwritten now, nobody needs to look at again
                known[:] = [
                    (j, o) for j, o in known if not (access.low <= o.low and o.high <= access.high and j in mine)
                ]
            known.append((i, access))
        waits.append([Wait(j, drained) for j, drained in sorted(mine.items())])
    return waits


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
        end, drain = [0] * UNITS, [0] * UNITS
        for wait in waits[i]:
            unit = instructions[wait.instruction].unit
            counters = drain if wait.drained else end
            if wait.drained or unit != instruction.unit:
                counters[unit] = max(counters[unit], place[wait.instruction])
        for access in accesses(instruction, slice_span):
            if not has_ports(access.memory):
                continue
            users = ports[access.memory, access.writes]
            for unit, last in users.items():
                if unit != instruction.unit:
                    end[unit] = max(end[unit], last)
            users[instruction.unit] = place[i]
        instruction.after_end, instruction.after_drain = end, drain
