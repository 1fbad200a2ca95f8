"""The cycles in which each instruction begins and ends, from bounds and the sample's length alone.

The rule is in docs/processor.md and `hls_src/processor/machine.h`; a test compares it with the loop, cycle by cycle. If
an instruction does its last step in cycle c, the next one of the same unit begins in c + 1 at the earliest, one that
waits for its end in c + 2, and one that waits for its results in c + LATENCY. An instruction that is chained to it
begins at least LATENCY cycles after its begin.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np

from bttlab.compiler.errors import ProgramError
from bttlab.compiler.instruction import UNIT_NAMES, Bound, Instruction
from bttlab.compiler.machine import M, target

FIRST_SENT = M.FETCH - 1  # the cycle in which the dispatcher sends the first instruction
TO_UNIT = M.FETCH + 2  # cycles from sending an instruction to its first step: queue, fetch, decode
SEEN = 1  # cycles from an instruction's end to the begin of another unit's instruction that waits for it
FINISHED = 2  # cycles from the last end to the end of the loop; then the pipeline drains


class Timing(NamedTuple):
    """Times of instructions, each an int, or an array with a number for each length."""

    begin: list  # cycles of the first steps
    # Cycles after the last steps; an instruction without steps ends when it begins, and occupies its unit for a cycle.
    end: list
    cycles: int | np.ndarray  # of the whole run


def time_program(instructions: Sequence[Instruction], tokens: int | np.ndarray, updates: bool = True) -> Timing:
    """Return the cycles in which each instruction of a run begins and ends.

    `instructions`: in the order of the list, with their `after` counts.
    `tokens`: length of the sample, or several lengths for which times are computed at once.
    `updates`: whether an update is pending; else the update unit's instructions have no step.
    Raise `ProgramError` if the program deadlocks: it waits for itself.
    """
    queue = M.QUEUE
    # Arrays if `tokens` is one: NumPy adds two arrays faster than an array and a number.
    first_sent, fetch, to_unit, seen, drain, latency = (
        cycles + 0 * tokens for cycles in (FIRST_SENT, M.FETCH, TO_UNIT, SEEN, target().LATENCY - 1, target().LATENCY)
    )
    later = np.maximum if isinstance(tokens, np.ndarray) else max
    # By the bounds of the loops: steps, and cycles until other units see the end and until the unit begins the next.
    steps_of: dict[tuple[Bound, ...], tuple] = {}
    begin = [0] * len(instructions)
    end = [0] * len(instructions)
    sent = [0] * len(instructions)
    streams: list[list[int]] = [[] for _ in range(M.UNITS)]  # instructions sent to each unit
    begun = [0] * M.UNITS  # number of these whose times are known
    ends: list[list[int]] = [[] for _ in range(M.UNITS)]  # cycles after the last steps of these
    free = [0 * tokens] * M.UNITS  # cycle in which the next one begins at the earliest

    def counted(instruction: Instruction) -> tuple:
        bounds = tuple([loop.bound for loop in instruction.loops])
        if bounds not in steps_of:
            steps = instruction.steps(tokens) + 0 * tokens
            steps_of[bounds] = steps, later(steps, 1), later(steps, fetch)
        return steps_of[bounds]

    def send(i: int) -> bool:
        stream = streams[instructions[i].unit]
        cycle = sent[i - 1] + fetch if i else first_sent
        if len(stream) >= queue:
            if begun[instructions[i].unit] <= len(stream) - queue:
                return False
            cycle = later(cycle, begin[stream[len(stream) - queue]])
        sent[i] = cycle
        stream.append(i)
        return True

    def start(unit: int) -> bool:
        if begun[unit] == len(streams[unit]):
            return False
        i = streams[unit][begun[unit]]
        instruction = instructions[i]
        cycle = later(sent[i] + to_unit, free[unit])
        waits = zip(instruction.after_end, instruction.after_drain, instruction.after_begin, strict=True)
        for awaited, (ended, drained, chained) in enumerate(waits):
            if not (ended or drained or chained):
                continue
            if max(ended, drained, chained) > begun[awaited]:
                return False
            if ended:
                cycle = later(cycle, ends[awaited][ended - 1] + seen)
            if chained > drained:  # they share a field: a later begin implies the end of all instructions before it
                cycle = later(cycle, begin[streams[awaited][chained - 1]] + latency)
            elif drained:
                cycle = later(cycle, ends[awaited][drained - 1] + drain)
        steps, busy, until_next = counted(instruction) if updates or unit != M.UPDATE else (0, 1, fetch)
        begin[i], end[i], free[unit] = cycle, cycle + steps, cycle + until_next
        ends[unit].append(cycle + busy)
        begun[unit] += 1
        return True

    following = 0
    while following < len(instructions) or sum(begun) < len(instructions):
        moved = False
        while following < len(instructions) and send(following):
            start(instructions[following].unit)  # most need not wait for one that is sent later
            following += 1
            moved = True
        for unit in range(M.UNITS):
            while start(unit):
                moved = True
        if not moved:
            waiting = next(s[n] for s, n in zip(streams, begun, strict=True) if n < len(s))
            unit = UNIT_NAMES[instructions[waiting].unit]
            raise ProgramError(
                f"the program waits for itself: instruction {waiting} ({unit}) waits for one that begins after it"
            )
    return Timing(begin, end, reduce(later, (e[-1] for e in ends if e), 0) + FINISHED + target().LATENCY)


def busy_shares(instructions: Sequence[Instruction], timing: Timing) -> list[float]:
    """Return, for each unit, the fraction of all cycles in which it does steps."""
    steps = [0] * M.UNITS
    for instruction, begin, end in zip(instructions, timing.begin, timing.end, strict=True):
        steps[instruction.unit] += end - begin
    return [count / timing.cycles for count in steps]


def intervals_of(
    instructions: Sequence[Instruction], timing: Timing, label_of: Callable[[Instruction], Hashable]
) -> Iterator[tuple[int, Counter]]:
    """Divide a run into intervals in which the same instructions do steps.

    Yield the cycles of each interval, and the number of instructions of each label that do steps in it.
    """
    edges: dict[int, list[tuple[int, Hashable]]] = defaultdict(list)
    for instruction, begin, end in zip(instructions, timing.begin, timing.end, strict=True):
        if end > begin:
            edges[begin].append((1, label_of(instruction)))
            edges[end].append((-1, label_of(instruction)))
    working: Counter = Counter()
    before = 0
    for cycle in sorted({*edges, timing.cycles}):
        yield cycle - before, working
        for change, label in edges[cycle]:
            working[label] += change
        before = cycle
