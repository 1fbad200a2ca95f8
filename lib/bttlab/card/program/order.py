"""In which order instructions are sent: list scheduling by the longest way to the end, for a sample of typical length."""

from collections import defaultdict
from collections.abc import Sequence

from bttlab.card.program.dependencies import accesses, data_waits, has_ports
from bttlab.card.program.instruction import MACHINE, UNITS, Instruction


def ordered(instructions: Sequence[Instruction], slice_span: tuple[int, ...], tokens: int) -> list[Instruction]:
    """Return the instructions in an order that keeps units busy; what waits for what stays as it is.

    Parameters
    ----------
    instructions : sequence of Instruction
        In the order of the mathematics.
    slice_span : tuple of int
        Most that a slice of each table adds to an address.
    tokens : int
        The length that the order is made for; it is right for every other, too.
    """
    waits = data_waits(instructions, slice_span)
    steps = [max(i.steps(tokens), MACHINE.FETCH) for i in instructions]
    followers: list[list[tuple[int, int]]] = [[] for _ in instructions]
    left = [len(w) for w in waits]
    for i, mine in enumerate(waits):
        for wait in mine:
            followers[wait.instruction].append((i, MACHINE.LATENCY if wait.drained else 0))
    urgency = [0] * len(instructions)  # cycles from its begin to the end of all
    for i in reversed(range(len(instructions))):
        urgency[i] = steps[i] + max((lag + urgency[j] for j, lag in followers[i]), default=0)
    ports = [
        [(a.memory, a.writes) for a in accesses(instruction, slice_span) if has_ports(a.memory)]
        for instruction in instructions
    ]
    ready: list[set[int]] = [set() for _ in range(UNITS)]
    earliest = [0] * len(instructions)
    for i, count in enumerate(left):
        if not count:
            ready[instructions[i].unit].add(i)
    unit_free = [0] * UNITS
    port_free: dict[tuple[str, bool], int] = defaultdict(int)
    result: list[tuple[int, int]] = []
    for _ in instructions:
        best = None
        for unit in range(UNITS):
            starts = [
                (max(unit_free[unit], earliest[i], *(port_free[p] for p in ports[i])), -urgency[i], i)
                for i in ready[unit]
            ]
            if not starts:
                continue
            soonest = min(starts)[0]
            # Of those that could begin within a latency of the soonest, the most urgent one.
            choice = min(starts, key=lambda s: (s[0] > soonest + MACHINE.LATENCY, s[1], s[0]))
            if best is None or choice < best:
                best = choice
        start, _, i = best
        unit = instructions[i].unit
        ready[unit].remove(i)
        end = start + steps[i]
        unit_free[unit] = end
        for port in ports[i]:
            port_free[port] = end
        result.append((start, i))
        for j, lag in followers[i]:
            earliest[j] = max(earliest[j], end + lag)
            left[j] -= 1
            if not left[j]:
                ready[instructions[j].unit].add(j)
    result.sort()
    return [instructions[i] for _, i in result]
