"""In which order instructions are sent: list scheduling by the longest way to the end of a typical sample."""

from collections import defaultdict
from collections.abc import Sequence

from bttlab.card.program.dependencies import accesses, data_waits, has_ports
from bttlab.card.program.instruction import ACCUMULATE, DRAIN_0, ENGINE_1, EXPAND, MACHINE, UNITS, Instruction

NEVER = 1 << 60


class _Sums:
    """Which side of an engine's sums an instruction takes: one whose earlier sums have all been drained."""

    def __init__(self, instructions: Sequence[Instruction], left: Sequence[int]):
        self._instructions, self._waiting = instructions, left
        self._free = [[0, 0] for _ in range(MACHINE.ENGINES)]  # from when on a side may be taken
        self._left: dict[int, int] = {}  # drains of an accumulation that have no place yet
        self._drains: dict[int, list[int]] = {}
        self._source: dict[int, int] = {}  # of a drain: its accumulation
        filled: dict[int, int] = {}
        for i, instruction in enumerate(instructions):
            if instruction.unit <= ENGINE_1 and instruction.operation == ACCUMULATE:
                filled[instruction.unit] = i
                self._left[i] = 0
                self._drains[i] = []
            elif instruction.unit in (DRAIN_0, DRAIN_0 + 1):
                self._source[i] = filled[instruction.unit - DRAIN_0]
                self._left[self._source[i]] += 1
                self._drains[self._source[i]].append(i)

    def _sums(self, i: int) -> bool:
        return self._instructions[i].unit <= ENGINE_1 and self._instructions[i].operation != EXPAND

    def free(self, i: int) -> int:
        """Return from when on there is a side for an instruction, NEVER if there is none yet.

        Drains must wait for nothing but the sums: else both sides could be taken by sums that nobody can fetch.
        """
        if any(self._waiting[drain] > 1 for drain in self._drains.get(i, ())):
            return NEVER
        return min(self._free[self._instructions[i].unit]) if self._sums(i) else 0

    def take(self, i: int, end: int) -> None:
        """Note that an instruction was given its place."""
        instruction = self._instructions[i]
        if i in self._source:
            source = self._source[i]
            self._left[source] -= 1
            instruction.flags = instruction.flags & ~MACHINE.SIDE | self._instructions[source].flags & MACHINE.SIDE
            if not self._left[source]:
                self._free[instruction.unit - DRAIN_0][int(bool(instruction.flags & MACHINE.SIDE))] = end
        elif self._sums(i):
            sides = self._free[instruction.unit]
            side = int(sides[1] < sides[0])
            instruction.flags = instruction.flags & ~MACHINE.SIDE | (MACHINE.SIDE if side else 0)
            sides[side] = NEVER if self._left.get(i) else end


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
    waits = data_waits(instructions, slice_span, sums=False)
    steps = [max(i.steps(tokens), MACHINE.FETCH) for i in instructions]
    followers: list[list[tuple[int, int]]] = [[] for _ in instructions]
    left = [len(w) for w in waits]
    for i, mine in enumerate(waits):
        for wait in mine:
            lag = (0, MACHINE.LATENCY - steps[wait.instruction], MACHINE.LATENCY)[wait.until]
            followers[wait.instruction].append((i, lag))
    urgency = [0] * len(instructions)  # cycles from its begin to the end of all
    for i in reversed(range(len(instructions))):
        urgency[i] = steps[i] + max((lag + urgency[j] for j, lag in followers[i]), default=0)
    ports = [
        [(a.memory, a.writes) for a in accesses(instruction, slice_span) if has_ports(a.memory)]
        for instruction in instructions
    ]
    sums = _Sums(instructions, left)
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
                (max(unit_free[unit], earliest[i], sums.free(i), *(port_free[p] for p in ports[i])), -urgency[i], i)
                for i in ready[unit]
                if sums.free(i) < NEVER
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
        sums.take(i, end)
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
