"""When each instruction runs: the machine's rule of order and time (docs/processor.md), from bounds and lengths."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from bttlab.card.program.instruction import MACHINE, UNITS, Instruction


class Timing(NamedTuple):
    """When instructions run.

    Attributes
    ----------
    begin, end : list of int
        Cycle of the first step, and the cycle after the last.
    cycles : int
        Of the loop.
    """

    begin: list[int]
    end: list[int]
    cycles: int


def time_program(instructions: Sequence[Instruction], tokens: int, updates: bool = True) -> Timing:
    """Return when each instruction of a run of the loop begins and ends.

    Parameters
    ----------
    instructions : sequence of Instruction
        In the order of the list, with their `after` counts.
    tokens : int
        The sample's length.
    updates : bool
        Whether an update is pending; else the update unit's instructions have no step.
    """
    fetch, queue, latency = MACHINE.FETCH, MACHINE.QUEUE, MACHINE.LATENCY
    begin = [0] * len(instructions)
    end = [0] * len(instructions)
    ends: list[list[int]] = [[] for _ in range(UNITS)]  # the cycle after the last step, of each unit's instructions
    begins: list[list[int]] = [[] for _ in range(UNITS)]
    last_begin = [-fetch] * UNITS
    taken: list[deque] = [deque() for _ in range(UNITS)]  # when the instructions that wait leave the queue
    sent = -1
    for i, instruction in enumerate(instructions):
        unit = instruction.unit
        sent += fetch
        if len(taken[unit]) == queue:
            sent = max(sent, taken[unit].popleft())
        start = max(sent + fetch + 2, last_begin[unit] + fetch, ends[unit][-1] if ends[unit] else 0)
        for other in range(UNITS):
            if instruction.after_end[other]:
                start = max(start, ends[other][instruction.after_end[other] - 1] + 1)
            if instruction.after_begin[other] > instruction.after_drain[other]:
                start = max(start, begins[other][instruction.after_begin[other] - 1] + latency)
            if instruction.after_drain[other]:
                start = max(start, ends[other][instruction.after_drain[other] - 1] - 1 + latency)
        steps = instruction.steps(tokens) if updates or unit != MACHINE.UPDATE else 0
        begin[i], end[i] = start, start + steps
        begins[unit].append(start)
        ends[unit].append(start + max(steps, 1))
        last_begin[unit] = start
        taken[unit].append(start)
    return Timing(begin, end, max((e[-1] for e in ends if e), default=0) + 1 + latency)
