"""In which order instructions are sent: list scheduling by the longest way to the end of a typical sample.

Instructions are placed one after the other, the most urgent first, each as early as what it waits for, its unit, its
ports and, for an engine, a pong of the sums allow; what is less urgent fills the gaps.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from copy import copy
from heapq import heapify, heappop, heappush
from itertools import islice

from bttlab.compiler.dependencies import CHAIN, DRAIN, END, Waits, data_waits, ports_of, set_waits
from bttlab.compiler.errors import DoesNotFit
from bttlab.compiler.instruction import ACCUMULATE, DRAIN_0, ENGINE_1, EXPAND, MACHINE, Instruction
from bttlab.compiler.scratch import Scratch, assign_addresses
from bttlab.compiler.timing import time_program

NEVER = 1 << 60
# Weights that are tried: of an engine's steps in the urgency, since engines are scarce; and of an instruction's place
# in the mathematics, since what runs far ahead keeps its vectors long, and they may not fit.
WEIGHTS = tuple((engine, place) for place in (0.0, 0.1, 0.2, 0.3) for engine in (1.0, 1.5))
TIMED = 3  # orders, of those that fit and end first, whose time is looked at
TIMED_FOR = (-3, 0, 3)  # tokens more than the order is made for


class _Busy:
    """Times of use: intervals that neither overlap nor touch."""

    def __init__(self) -> None:
        self._begins, self._ends = [-1], [0]

    def free(self, start: int, cycles: int) -> int:
        """Return the first time from `start` on at which it is free for so many cycles."""
        begins, ends = self._begins, self._ends
        for n in range(bisect_right(begins, start) - 1, len(begins)):
            if begins[n] >= start + cycles:
                break
            start = max(start, ends[n])
        return start

    def take(self, begin: int, end: int) -> None:
        """Note that it is in use from `begin` to before `end`."""
        n = bisect_right(self._begins, begin)
        if self._ends[n - 1] == begin:
            n -= 1
            self._ends[n] = end
        else:
            self._begins.insert(n, begin)
            self._ends.insert(n, end)
        if n + 1 < len(self._begins) and self._begins[n + 1] == end:
            self._ends[n] = self._ends.pop(n + 1)
            del self._begins[n + 1]


class _Placement:
    """Return the begin of each instruction, as far as it is known."""

    def __init__(self, instructions: Sequence[Instruction], waits: Waits, tokens: int):
        self.instructions, self.waits = instructions, waits
        steps = [i.steps(tokens) for i in instructions]
        self.active = [count > 0 for count in steps]
        self.steps = [max(count, MACHINE.FETCH) for count in steps]
        self.uses = [(i.unit, *sorted(ports_of(i))) for i in instructions]  # unit and ports of each
        self.drains: dict[int, list[int]] = {}  # of an accumulation
        filled: dict[int, int] = {}
        for i, instruction in enumerate(instructions):
            if instruction.unit <= ENGINE_1 and instruction.operation == ACCUMULATE:
                filled[instruction.unit] = i
                self.drains[i] = []
            elif instruction.unit in (DRAIN_0, DRAIN_0 + 1):
                self.drains[filled[instruction.unit - DRAIN_0]].append(i)
        self._drained = {drain for drains in self.drains.values() for drain in drains}
        self.followers: list[list[tuple[int, int]]] = [[] for _ in instructions]  # and cycles from its end to theirs
        for i, mine in enumerate(waits):
            for wait, until in mine.items():
                lags = {DRAIN: MACHINE.LATENCY, CHAIN: MACHINE.LATENCY - self.steps[wait], END: 0}
                self.followers[wait].append((i, max(lag for kind, lag in lags.items() if until & kind)))
        for i, drains in self.drains.items():  # they have their places with it: what they wait for comes first
            for wait in {wait for drain in drains for wait in waits[drain]}:
                if wait < i:
                    self.followers[wait].append((i, 1 - self.steps[wait]))

    def unplaced(self) -> "_Placement":
        """Return one of the same instructions in which none has its place."""
        one = copy(self)
        one.earliest = [0] * len(self.steps)  # because of what has its place
        one.begin = [0] * len(self.steps)
        one.pongs = {}  # of the sums, that an accumulation and its drains have
        one._taken = defaultdict(_Busy)
        return one

    @property
    def ends(self) -> list[int]:
        """The cycle after the last step of each instruction."""
        return [self.end(i) for i in range(len(self.instructions))]

    def end(self, i: int) -> int:
        """Return the cycle after the last step of an instruction that has its place."""
        return self.begin[i] + self.steps[i]

    def place(self, i: int, start: int) -> Iterable[int]:
        """Give an instruction its place from `start` on, and what it sums for a drain to that drain's; return them."""
        if i in self._drained:
            return ()
        while True:
            start = self._free(i, start)
            end = start + self.steps[i]
            if self.instructions[i].unit > ENGINE_1 or self.instructions[i].operation == EXPAND:
                break
            drains: list[tuple[int, int]] = []
            for drain in self.drains.get(i, ()):
                earliest = drains[-1][1] + self.steps[drains[-1][0]] if drains else end + MACHINE.LATENCY
                drains.append((drain, self._free(drain, max(earliest, self.earliest[drain]))))
            last = max((begin + self.steps[drain] for drain, begin in drains), default=end)
            pongs = [self._taken[self.instructions[i].unit, "pong", pong].free(start, last - start) for pong in (0, 1)]
            if min(pongs) > start:
                start = min(pongs)
                continue
            pong = pongs.index(start)
            self._taken[self.instructions[i].unit, "pong", pong].take(start, last)
            self.pongs |= dict.fromkeys((i, *self.drains.get(i, ())), pong)
            for drain, begin in drains:
                self._take(drain, begin)
            break
        self._take(i, start)
        return (i, *self.drains.get(i, ()))

    def _free(self, i: int, start: int) -> int:
        """Return the first time at which all that an instruction uses is free."""
        while True:
            later = start
            for use in self.uses[i]:
                later = self._taken[use].free(later, self.steps[i])
            if later == start:
                return start
            start = later

    def _take(self, i: int, begin: int) -> None:
        self.begin[i] = begin
        for use in self.uses[i]:
            self._taken[use].take(begin, begin + self.steps[i])


def ordered(
    instructions: Sequence[Instruction], offset_span: tuple[int, ...], tokens: int, scratch: Sequence[Scratch] = ()
) -> list[Instruction]:
    """Return the instructions in an order that keeps units busy; what waits for what stays as it is.

    Parameters
    ----------
    instructions : sequence of Instruction
        In the order of the mathematics.
    offset_span : tuple of int
        Most that a slice of each table adds to an address.
    tokens : int
        The length that the order is made for; it is right for every other, too.
    scratch : sequence of Scratch
        Their vectors get addresses: in the order that is found, or, if they do not fit so, in that of the mathematics.

    Raises
    ------
    ProgramError
        If they do not fit.
    """
    empty = _Placement(instructions, data_waits(instructions, offset_span), tokens)
    schedules = [_placed(empty.unplaced(), *weights) for weights in WEIGHTS]
    schedules.sort(key=lambda schedule: max(schedule.ends, default=0))
    timed = ((_cycles(one, scratch, offset_span, tokens), n) for n, one in enumerate(schedules))
    fits = list(islice((one for one in timed if one[0] is not None), TIMED))
    if not fits:
        if not assign_addresses(scratch, instructions, [(i, i) for i in range(len(instructions))]):
            raise DoesNotFit(
                "a linear layer needs more vectors at once than banks "
                f"{' and '.join(str(one.bank) for one in scratch)} have",
                "a shorter sequence, or an order of contraction that merges more cores",
            )
        return ordered(instructions, offset_span, tokens)
    best = schedules[min(fits)[1]]
    _assign_addresses(best, scratch)
    return [instructions[i] for i in _order(best)]


def _assign_addresses(schedule: _Placement, scratch: Sequence[Scratch]) -> bool:
    return assign_addresses(scratch, schedule.instructions, list(zip(schedule.begin, schedule.ends, strict=True)))


def _order(schedule: _Placement) -> list[int]:
    """Give each instruction the pong of its sums; return their numbers in the schedule's order."""
    instructions, begin = schedule.instructions, schedule.begin
    for i, pong in schedule.pongs.items():
        flags = instructions[i].flags & ~MACHINE.PONG
        instructions[i].flags = flags | (MACHINE.PONG if pong else 0)
    return sorted(range(len(instructions)), key=lambda i: (begin[i], i))


def _cycles(schedule: _Placement, scratch: Sequence[Scratch], offset_span: tuple[int, ...], tokens: int) -> int | None:
    """Return the cycles of a schedule's order, for samples of about so many tokens; None if scratch does not fit."""
    instructions = schedule.instructions
    operands = [dict(instruction.operands) for instruction in instructions]
    if not _assign_addresses(schedule, scratch):
        return None
    order = _order(schedule)
    set_waits(instructions, offset_span, order, schedule.waits, {f"bank {one.bank}" for one in scratch})
    sent = [instructions[i] for i in order]
    cycles = sum(time_program(sent, max(1, tokens + more)).cycles for more in TIMED_FOR)
    for instruction, before in zip(instructions, operands, strict=True):
        instruction.operands = before  # scratch has no addresses again
    return cycles


def _placed(schedule: _Placement, engine_weight: float, place_weight: float) -> _Placement:
    """Give every instruction its place; the weights are those of WEIGHTS."""
    instructions, steps, followers = schedule.instructions, schedule.steps, schedule.followers
    urgency = [0.0] * len(instructions)  # cycles from its begin to the end of all
    for i in reversed(range(len(instructions))):
        weight = engine_weight if instructions[i].unit <= ENGINE_1 else 1
        urgency[i] = weight * steps[i] + max((lag + urgency[j] for j, lag in followers[i]), default=0)
    share = place_weight * max(urgency, default=0) / max(len(urgency), 1)
    urgency = [(1 - place_weight) * u + share * (len(urgency) - i) for i, u in enumerate(urgency)]
    # Those that wait for nothing that has no place yet; what has no steps at this length delays nothing, and must
    # not be late: what comes after it would be.
    left = [0] * len(instructions)
    for j, _ in (follower for mine in followers for follower in mine):
        left[j] += 1
    urgency = [u if active else NEVER for active, u in zip(schedule.active, urgency, strict=True)]
    ready = [(-urgency[i], i) for i, count in enumerate(left) if not count]
    heapify(ready)
    while ready:
        _, i = heappop(ready)
        for placed in schedule.place(i, schedule.earliest[i]):
            for j, lag in followers[placed]:
                schedule.earliest[j] = max(schedule.earliest[j], schedule.end(placed) + lag)
                left[j] -= 1
                if not left[j]:
                    heappush(ready, (-urgency[j], j))
    return schedule
