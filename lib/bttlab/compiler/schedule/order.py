"""The order in which instructions are sent: list scheduling by the critical path of a typical sample.

Instructions are scheduled one at a time, the most urgent first. Each begins as early as its waits, its unit, its ports
and, for an engine, a free ping-pong buffer of sums allow; less urgent instructions fill the gaps. The order is then
improved by a search: urgencies are shifted at random, and taken again from the schedule that follows.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property
from heapq import heapify, heappop, heappush
from random import Random

from bttlab.compiler.access import drains_of, uses_sums
from bttlab.compiler.instruction import Instruction
from bttlab.compiler.machine import M, target
from bttlab.compiler.schedule.dependencies import DRAIN, END, Ports, Waits, data_waits, ports_of, set_waits

WEIGHTS = (1.0, 1.5)  # to try: of an engine's steps in the urgency, since engines are scarce
EFFORT = 10500  # instructions that the search shifts; a section of this length is searched in one round
SHIFTS, SHARES = (
    (300, 1000, 3000, 10000),
    (1.0, 1.0, 0.3, 0.1, 0.03),
)  # cycles of a round's shifts; instructions shifted
TOLERANCE = 1.001  # the search goes on from a schedule that is longer than the shortest by no more than this factor
SEED = 1  # of those tried (0 to 11), one of the best for the models of the paper

Intervals = tuple[list[int], list[int]]  # begins and ends of when a unit or a port is in use; they do not touch


def _reserve(taken: Sequence[Intervals], uses: Sequence[int], begin: int, end: int) -> None:
    """Mark units and ports as in use from `begin` to before `end`."""
    for use in uses:
        begins, ends = taken[use]
        last = ends[-1]
        if begin == last:
            ends[-1] = end
        elif begin > last:
            begins.append(begin)
            ends.append(end)
        else:
            n = bisect_right(begins, begin)
            if ends[n - 1] == begin:
                n -= 1
                ends[n] = end
            else:
                begins.insert(n, begin)
                ends.insert(n, end)
            if begins[n + 1] == end:  # there is a later one
                ends[n] = ends.pop(n + 1)
                del begins[n + 1]


def _free(taken: Sequence[Intervals], uses: Sequence[int], start: int, cycles: int) -> int:
    """Return the earliest time, `start` or later, at which these units and ports are free for a number of cycles."""
    while True:
        of_first = -1  # the earliest time of the first use: it is free unless another one is free later
        for use in uses:
            begins, ends = taken[use]
            if start < ends[-1]:
                n = bisect_right(begins, start)
                if start < ends[n - 1]:
                    start = ends[n - 1]
                if n < len(begins):
                    end, count = start + cycles, len(begins)
                    while begins[n] < end:
                        start = ends[n]
                        end = start + cycles
                        n += 1
                        if n == count:
                            break
            if of_first < 0:
                of_first = start
        if start == of_first:
            return start


class _Section:
    """What schedules of a section's instructions have in common, for a sample of `tokens` tokens."""

    def __init__(self, instructions: Sequence[Instruction], waits: Waits, ports: Sequence[Ports], tokens: int):
        self.instructions = instructions
        steps = [i.steps(tokens) for i in instructions]
        self.active = [count > 0 for count in steps]
        self.steps = [max(count, M.FETCH) for count in steps]
        users = defaultdict(set)
        for instruction, of_instruction in zip(instructions, ports, strict=True):
            for port in of_instruction:
                users[port].add(instruction.unit)
        # The unit of each, and its ports, by their numbers; a port that only this unit uses is free when the unit is.
        shared = {port: M.UNITS + n for n, port in enumerate(port for port in users if len(users[port]) > 1)}
        self.resources = M.UNITS + len(shared)
        self.uses = [
            (instruction.unit, *[shared[port] for port in of_instruction if port in shared])
            for instruction, of_instruction in zip(instructions, ports, strict=True)
        ]
        self.drains = drains_of(instructions)
        self.drained = {drain for drains in self.drains.values() for drain in drains}
        self.summing = [uses_sums(instruction) for instruction in instructions]
        # For each instruction: those that wait for it, and the least number of cycles from its end to their begin.
        self.followers: list[list[tuple[int, int]]] = [[] for _ in instructions]
        latency = target().LATENCY
        for i, mine in enumerate(waits):
            for wait, until in mine.items():
                lag = 0 if until == END else latency if until & DRAIN else latency - self.steps[wait]
                self.followers[wait].append((i, max(lag, 0) if until & END else lag))
        for i, drains in self.drains.items():  # drains are scheduled with their accumulation, so it waits for theirs
            for wait in {wait for drain in drains for wait in waits[drain]}:
                if wait < i:
                    self.followers[wait].append((i, 1 - self.steps[wait]))
        self.waited: list[list[tuple[int, int]]] = [[] for _ in instructions]  # the same pairs, by the one that waits
        for i, followers in enumerate(self.followers):
            for j, lag in followers:
                self.waited[j].append((i, lag))
        self.waited_counts, self.follower_counts = list(map(len, self.waited)), list(map(len, self.followers))

    @cached_property
    def least(self) -> float:
        """A length that no schedule is below: that of the critical path, and of the steps of a unit or a port."""
        busy = [0] * self.resources
        for steps, uses in zip(self.steps, self.uses, strict=True):
            for use in uses:
                busy[use] += steps
        return max(*busy, *self.urgency(1.0))

    def urgency(self, engine_weight: float) -> list[float]:
        """Return the weighted cycles from each instruction's begin to the end of the section: its critical path."""
        urgency = [0.0] * len(self.steps)
        for i in reversed(range(len(urgency))):
            weight = engine_weight if self.instructions[i].unit <= M.ENGINE_1 else 1
            after = [lag + urgency[j] for j, lag in self.followers[i]]
            urgency[i] = weight * self.steps[i] + (max(after) if after else 0)
        return urgency


class _Schedule:
    """The cycle in which each instruction of a section begins and ends, those of greater urgency placed first."""

    def __init__(self, section: _Section, urgency: Sequence[float]):
        self.section, followers, count = section, section.followers, len(section.steps)
        self.earliest = [0] * count  # because of instructions that are already scheduled
        self.begin, self.ends = [0] * count, [0] * count
        self.pongs: dict[int, int] = {}  # ping-pong buffer of sums of each accumulation and its drains
        self._taken: list[Intervals] = [([-1], [0]) for _ in range(section.resources)]
        self._sums: list[list[Intervals]] = [[([-1], [0]) for _ in range(2)] for _ in range(M.ENGINES)]
        # Start with instructions that wait for nothing.
        left = section.waited_counts.copy()  # unscheduled instructions that each one waits for
        urgent = [-of for of in urgency]
        ready = [(urgent[i], i) for i, waits in enumerate(left) if not waits]
        heapify(ready)
        earliest, begin, ends = self.earliest, self.begin, self.ends
        taken, uses_of, steps_of, summing = self._taken, section.uses, section.steps, section.summing
        while ready:
            i = heappop(ready)[1]
            if summing[i]:
                numbers = self._place(i)
            else:
                uses, steps, numbers = uses_of[i], steps_of[i], (i,)
                begin[i] = start = _free(taken, uses, earliest[i], steps)
                ends[i] = end = start + steps
                _reserve(taken, uses, start, end)
            for placed in numbers:
                end = ends[placed]
                for j, lag in followers[placed]:
                    if end + lag > earliest[j]:
                        earliest[j] = end + lag
                    left[j] -= 1
                    if not left[j]:
                        heappush(ready, (urgent[j], j))

    @cached_property
    def length(self) -> int:
        return max(self.ends, default=0)

    def _place(self, i: int) -> Sequence[int]:
        """Schedule an instruction that uses sums, an accumulation's drains with it; return their numbers."""
        section, start, taken = self.section, self.earliest[i], self._taken
        if i in section.drained:
            return ()
        steps_of, uses_of, earliest, begin, ends = section.steps, section.uses, self.earliest, self.begin, self.ends
        steps, uses, latency = steps_of[i], uses_of[i], target().LATENCY
        drains, sums = section.drains.get(i, ()), self._sums[section.instructions[i].unit]
        while True:
            start = _free(taken, uses, start, steps)
            last, least = start + steps, start + steps + latency
            for drain in drains:
                least = max(least, earliest[drain])
                begin[drain] = least = _free(taken, uses_of[drain], least, steps_of[drain])
                ends[drain] = last = least = least + steps_of[drain]
            free = _free(sums, (0,), start, last - start), _free(sums, (1,), start, last - start)
            if start in free:
                break
            start = min(free)
        begin[i], ends[i] = start, start + steps
        # The one that was in use last: the other has a longer gap.
        pong = int(free[1] == start)
        if free[0] == free[1]:
            pong = int(_used_before(sums[1], start) > _used_before(sums[0], start))
        _reserve(sums, (pong,), start, last)
        for placed in (i, *drains):
            self.pongs[placed] = pong
            _reserve(taken, uses_of[placed], begin[placed], ends[placed])
        return (i, *drains)

    def latest(self) -> list[float]:
        """Return how long before the end each instruction has to begin: its urgency in a better schedule.

        Time runs backwards: the instruction that ends last is placed first, each as close to the end as what follows
        it, its unit and its ports allow. Project scheduling calls this justification (Valls, Ballestin, Quintanilla,
        2005).
        """
        section, ends, steps = self.section, self.ends, self.section.steps
        left = section.follower_counts.copy()  # unplaced instructions that wait for each one
        before, begin = [0] * len(ends), [0.0] * len(ends)
        taken: list[Intervals] = [([-1], [0]) for _ in range(section.resources)]
        ready = [(-ends[i], i) for i, waits in enumerate(left) if not waits]
        heapify(ready)
        while ready:
            j = heappop(ready)[1]
            end = start = before[j]
            if section.active[j]:
                uses = section.uses[j]
                start = _free(taken, uses, start, steps[j])
                end = start + steps[j]
                _reserve(taken, uses, start, end)
            begin[j] = end
            for i, lag in section.waited[j]:
                if end + lag > before[i]:
                    before[i] = end + lag
                left[i] -= 1
                if not left[i]:
                    heappush(ready, (-ends[i], i))
        return begin


def _used_before(taken: Intervals, start: int) -> int:
    """Return when a ping-pong buffer was last in use before a time at which it is free."""
    return taken[1][bisect_right(taken[0], start) - 1]


def _sections(
    sections: Sequence[Sequence[Instruction]], waits: Waits, ports: Sequence[Ports], tokens: int
) -> Iterator[_Section]:
    """Yield sections that run one after the other, from the waits and ports of all their instructions."""
    first = 0
    for section in sections:
        end = first + len(section)
        own = [{j - first: kinds for j, kinds in of.items() if j >= first} for of in waits[first:end]]
        yield _Section(section, own, ports[first:end], tokens)
        first = end


def bound(sections: Sequence[Sequence[Instruction]], offset_span: tuple[int, ...], tokens: int) -> float:
    """Return cycles that no order of sections is below: of the critical path, or of the steps of a unit.

    Buffers need no banks yet; arguments are those of `OrderSearch`.
    """
    instructions = [instruction for section in sections for instruction in section]
    waits, ports = data_waits(instructions, offset_span), ports_of(instructions)
    return sum(section.least for section in _sections(sections, waits, ports, tokens))


class OrderSearch:
    """Search for orders of sections that run one after the other.

    It goes on where it stopped: a search with more effort begins with what one with less has found.

    `sections`: in the order of the mathematics.
    `offset_span`: largest token offset of each table.
    `tokens`: length of the sample for which the order is optimized; it is valid for every length.
    """

    def __init__(self, sections: Sequence[Sequence[Instruction]], offset_span: tuple[int, ...], tokens: int):
        self._instructions = [instruction for section in sections for instruction in section]
        self._waits = data_waits(self._instructions, offset_span)
        self._ports = ports_of(self._instructions)
        self._searches = [_SectionSearch(of) for of in _sections(sections, self._waits, self._ports, tokens)]
        self._ordered: tuple[list[_Schedule], list[list[Instruction]]] | None = None  # of the last call

    def ordered(self, effort: int | None = None) -> list[list[Instruction]]:
        """Return copies of the instructions, by section, in orders that keep units busy, and with their waits.

        They are those of the call before if the search found nothing shorter since.

        `effort`: instructions that the search shifts, by default `EFFORT`; with 0 there is none.
        """
        schedules = [search.shortest(EFFORT if effort is None else effort) for search in self._searches]
        if self._ordered is None or self._ordered[0] != schedules:
            self._ordered = schedules, self._in_order(schedules)
        return self._ordered[1]

    def _in_order(self, schedules: Sequence[_Schedule]) -> list[list[Instruction]]:
        instructions, order, result = [instruction.copy() for instruction in self._instructions], [], []
        for schedule in schedules:
            first = len(order)
            for i, pong in schedule.pongs.items():
                instruction = instructions[first + i]
                instruction.flags = instruction.flags & ~M.PONG | (M.PONG if pong else 0)
            begin = schedule.begin
            order += (first + i for i in sorted(range(len(begin)), key=begin.__getitem__))
            result.append([instructions[i] for i in order[first:]])
        set_waits(instructions, self._waits, order, self._ports)
        return result


class _SectionSearch:
    """Search for a short schedule of a section: rounds that shift urgencies at random."""

    def __init__(self, section: _Section):
        self._section, self._random = section, Random(SEED)  # always the same program for a model
        schedules = (_Schedule(section, section.urgency(weight)) for weight in WEIGHTS)
        self._found = [min(schedules, key=lambda schedule: schedule.length)]  # the shortest after each round
        self._urgency: list[float] | None = None

    def shortest(self, effort: int) -> _Schedule:
        """Return the shortest schedule of a search that shifts `effort` instructions in all."""
        rounds = effort // max(len(self._section.steps), 1)
        while len(self._found) <= rounds and self._found[-1].length > self._section.least:
            self._found.append(self._improved(self._found[-1]))
        return self._found[min(rounds, len(self._found) - 1)]

    def _improved(self, shortest: _Schedule) -> _Schedule:
        """Return the shortest schedule after another round."""
        section, random = self._section, self._random
        urgency = shortest.latest() if self._urgency is None else self._urgency
        cycles, share = random.choice(SHIFTS), random.choice(SHARES)
        shifted = [of + cycles * (random.random() - 0.5) if random.random() < share else of for of in urgency]
        first = _Schedule(section, shifted)
        improved = _Schedule(section, first.latest())
        found = min(first, improved, key=lambda schedule: schedule.length)
        self._urgency = found.latest() if found.length < shortest.length * TOLERANCE else urgency
        return found if found.length < shortest.length else shortest
