"""Assign each buffer a bank that all its ports reach.

Layers allocate buffers by name and size (`Builder.allocate`). When all instructions of a sample are listed, their
operands show which ports must reach a buffer, and its lifetime. Two buffers that one instruction reads, or writes, need
different banks. Buffers that different units read, or write, at about the same time go to different banks if possible,
so that both units can work.
"""

import math
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import numpy as np

from bttlab.compiler.access import asks_in_fold
from bttlab.compiler.buffers import DEPTHS, GRADIENT_OF, MEMORIES, STATISTICS, Buffer
from bttlab.compiler.errors import SMALLER_MODEL, DoesNotFit
from bttlab.compiler.instruction import At, Instruction, Memory
from bttlab.compiler.machine import M
from bttlab.compiler.memory.copies import uses_of, with_copies

# Times of instructions are estimates: BUSY_UNITS units work on average, and scheduling moves an instruction by up to
# a window of WINDOW cycles. Two uses within it but not at the same time cost WINDOW_SHARE of a conflict.
BUSY_UNITS, WINDOW, WINDOW_SHARE = 2, 15000, 0.25
# Cycles, 40 for each port that reaches a bank: well-connected banks are left for buffers that need them.
PORT_COSTS = [40.0 * sum(bank in port.banks for port in M.ports) for bank in range(len(DEPTHS))]
ATTEMPTS = 12
FAR = 1 << 30  # distance in instructions where there is no next use
MOST_COPIES = 20  # times that copies are added for instructions whose operands would be in one bank
PARAMETER_BANKS = {*GRADIENT_OF, *GRADIENT_OF.values()}
PARAMETER_BANK_COST = 400.0  # cycles, for an activation in a bank of parameters or gradients


_Range = tuple[int, int, int, int]  # allocated: the first and the last instruction, the first vector, the one behind


class _Space:
    """Address ranges of a bank or an operand buffer that are allocated, each for a range of instructions."""

    def __init__(self, number: int):
        self.number, self.depth = number, DEPTHS[number]
        self.taken: list[_Range] = []
        self._vectors: list[tuple[int, int]] = []  # the first vector of each range and the one behind it, sorted

    def take(self, allocated: "_Range") -> None:
        self.taken.append(allocated)
        insort(self._vectors, allocated[2:])

    def release(self, allocated: "_Range") -> None:
        self.taken.remove(allocated)
        self._vectors.remove(allocated[2:])

    def place(self, vectors: int, first: int, last: int, behind: int) -> tuple[int, int] | None:
        """Choose the free range whose other uses are the farthest away: instructions wait for those that are near.

        `first`, `last`: instructions between which it is in use.
        `behind`: vectors that the memory has to have behind the range.

        Return its first vector, and the instruction that is as far before `first` as the nearest use is away, negative
        if there is none. Return None if no range is free.
        """
        low = 0
        for begin, end in self._vectors:
            if begin - low >= vectors:
                return low, first - FAR
            if end > low:
                low = end
        if self.depth - behind - low >= vectors:  # vectors that nothing uses
            return low, first - FAR
        taken = self.taken
        allocated = sorted([(low, high) for begin, end, low, high in taken if begin <= last and end >= first])
        allocated.append((self.depth - behind, self.depth))
        ranges, low = [], 0
        for begin, end in allocated:
            if begin - low >= vectors:
                ranges.append((low, begin - vectors))
            if end > low:
                low = end
        if not ranges:
            return None
        # How many instructions away other uses are.
        near = [(first - end, low, high) for _, end, low, high in taken if end < first]
        near += [(begin - last, low, high) for begin, _, low, high in taken if begin > last]
        near.sort()
        edges, places = sorted({high for _, _, high in near}), []
        for low, high in ranges:
            places.append(low)
            places += edges[bisect_right(edges, low) : bisect_right(edges, high)]
        # Places increase. Each use rules out those that it overlaps. The last one to do so decides: the lowest of these
        # is the farthest. Uses that are equally far are sorted by their vectors.
        distance = farthest = 0
        for use, low, high in near:
            begin, end = bisect_right(places, low - vectors), bisect_left(places, high)
            if begin < end:
                if use > distance:
                    distance, farthest = use, places[begin]
                del places[begin:end]
                if not places:
                    break
        return farthest, first - distance


class Choice(NamedTuple):
    """A bank that suits a buffer."""

    bank: int
    cost: float  # in cycles, whatever else is in the bank
    # Of each of its memories: the row of contention, None outside of banks, its bank then, and its rivals.
    memories: list[tuple[int | None, int, set[Memory]]]


class _Pairs(NamedTuple):
    """Pairs of uses that are near each other, for any window up to `window` cycles; an element of each array a pair."""

    window: int
    places: np.ndarray  # of their memories in the matrix of contention, by rows
    costs: np.ndarray  # in cycles
    apart: np.ndarray  # cycles from the end of the earlier use to the begin of the later one


class Demand:
    """What instructions demand of banks: what assignments with all windows have in common.

    `instructions`: instructions of a sample, in the order of the mathematics.
    `tokens`: length of the samples that the banks are to suit.
    `transferred`: as for `Buffer.allowed_banks`.
    """

    def __init__(
        self, buffers: Sequence[Buffer], instructions: Sequence[Instruction], tokens: int, transferred: Collection[str]
    ):
        self.instructions, self.all, self.last = instructions, buffers, len(instructions)
        self.conflicts = _conflicts(instructions)
        self.banks: dict[int, frozenset[int]] = {}  # banks that suit each buffer
        self.spans: dict[int, tuple[int, int]] = {}  # the first instruction that uses it, and the last
        self.streamed: set[int] = set()  # those with a vector behind them, which a fold asks for
        for number, uses in uses_of(buffers, instructions).items():
            if any(asks_in_fold(instructions[use.instruction], use.operand) for use in uses):
                self.streamed.add(number)
            self.banks[number] = buffers[number].allowed_banks(transferred).intersection(*(use.banks for use in uses))
            self.spans[number] = uses[0].instruction, uses[-1].instruction
        for buffer in buffers:
            is_moved = buffer.is_parameter or buffer.name in transferred  # even if no instruction uses it
            if is_moved and buffer.number not in self.banks:
                self.banks[buffer.number], self.spans[buffer.number] = buffer.allowed_banks(transferred), (0, 0)
        self.buffers = [buffer for buffer in buffers if buffer.number in self.banks]
        self.order = sorted(self.buffers, key=self._key)  # of placement
        # The instructions between which each has its vectors.
        self.span = {
            buffer: (0, self.last) if buffer.is_parameter or buffer.is_persistent else self.spans[buffer.number]
            for buffer in self.buffers
        }
        names = (name for buffer in self.buffers if buffer.is_in_bank for name in buffer.memories)
        self.index = {name: row for row, name in enumerate(names)}
        # Estimated times at which instructions begin and end, as if BUSY_UNITS units worked at all times.
        steps = np.array([instruction.steps(tokens) for instruction in instructions], float)
        begin = np.concatenate([[0], np.cumsum(steps)[:-1]]) / BUSY_UNITS
        self.times = np.stack([begin, begin + steps], 1)
        self.begins, self.ends = begin.tolist(), (begin + steps).tolist()
        self.choices = {buffer: self._choices(buffer) for buffer in self.buffers}
        # Of reads and of writes: the row of the memory, the times, and the unit of each use.
        self._uses = [self._uses_by(of) for of in (Instruction.reads, Instruction.writes)]
        self._pairs: _Pairs | None = None  # of the widest window so far: those of narrower ones are among them
        # What `Assignment.fit` finds whatever the window is: a buffer without space if there is one, and the places of
        # the others.
        self.unbalanced: tuple[Buffer | None, dict[Buffer, tuple[int, int]]] | None = None

    def _choices(self, buffer: Buffer) -> list[Choice]:
        choices = []
        for bank in self.banks[buffer.number]:
            cost = PORT_COSTS[bank]
            if not buffer.is_parameter and bank in PARAMETER_BANKS:
                cost += PARAMETER_BANK_COST
            memories = [(self.index.get(name), at, self.conflicts[name]) for name, at in _names(buffer, bank)]
            choices.append(Choice(bank, cost, memories))
        return choices

    def _uses_by(self, numbers_of: Callable[[Instruction], Sequence[int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        uses = [(i, o.operands[n].memory) for i, o in enumerate(self.instructions) for n in numbers_of(o)]
        uses = [(i, self.index[name]) for i, name in uses if name in self.index]
        numbers = [i for i, _ in uses]
        units = np.array([self.instructions[i].unit for i in numbers])
        return np.array([row for _, row in uses]), self.times[numbers].T, units

    def _key(self, buffer: Buffer):
        """Sort key of the order of placement: parameters, long-lived buffers, the rest; few choices first in each."""
        banks, (begin, end) = len(self.banks[buffer.number]), self.spans[buffer.number]
        if buffer.is_parameter:
            return 0, banks, -buffer.vectors
        is_kept = buffer.is_persistent or end - begin > self.last // 4
        return (1, banks, begin) if is_kept else (2, banks > 1, begin)

    def contention(self, window: int) -> np.ndarray:
        """Return the cost, in cycles, of two memories in one bank: different units use them at about the same time.

        The matrix is symmetric; `index` has the row of each memory. Costs are multiples of 1/4: sums of them are exact
        in any order.
        """
        if self._pairs is None or window > self._pairs.window:
            self._pairs = self._near_pairs(window)
        widest, places, costs, apart = self._pairs
        if window < widest:
            near = apart < window
            places, costs = places[near], costs[near]
        size = len(self.index)
        half = np.bincount(places, costs, size * size).reshape(size, size)
        result = half + half.T
        np.fill_diagonal(result, 0)
        return result

    def _near_pairs(self, window: int) -> _Pairs:
        """Return the pairs of uses by different units that both read, or both write, within a window."""
        size, places, costs, distances = len(self.index), [], [], []
        for rows, (begin, end), unit in self._uses:
            until = np.searchsorted(begin, end + window)
            counts = np.maximum(until - np.arange(len(rows)) - 1, 0)  # later uses within the window of each
            first = np.repeat(np.arange(len(rows)), counts)
            second = first + 1 + np.arange(len(first)) - np.repeat(np.cumsum(counts) - counts, counts)
            is_other = unit[first] != unit[second]
            first, second = first[is_other], second[is_other]
            cycles = np.minimum(end[first], end[second]) - begin[second]
            near = WINDOW_SHARE * np.minimum((end - begin)[first], (end - begin)[second])
            places.append(rows[first] * size + rows[second])
            costs.append(np.where(cycles > 0, cycles, near))
            distances.append(begin[second] - end[first])
        return _Pairs(window, *map(np.concatenate, (places, costs, distances)))


class Assignment:
    """Assigns each buffer a bank and an address, in two steps: `fit` and `write`.

    `window`: cycles by which scheduling may move an instruction; another window gives another assignment.
    """

    def __init__(self, demand: Demand, window: int):
        self.demand, self.window, self.instructions = demand, window, demand.instructions
        self._contention = demand.contention(window)
        self._first: list[Buffer] = []  # of `_attempt`

    def fit(self) -> set[tuple[Memory, Memory]]:
        """Find a bank and an address for every buffer.

        Return pairs of memories that need a copy (`copies.with_copies`): no two banks suit both. If there are none, all
        buffers are placed. Raise `DoesNotFit` if the banks have no space.
        """
        if self._attempt(True, 2) is None:
            return set()
        demand = self.demand
        if demand.unbalanced is None:
            unplaced = self._attempt(False, ATTEMPTS)
            demand.unbalanced = unplaced, self.placed
        else:
            unplaced, placed = demand.unbalanced
            self._reset(False)
            for buffer, place in placed.items():
                self._allocate(buffer, *place)
        if unplaced is None:
            return set()
        apart = []
        for bank in sorted(demand.banks[unplaced.number]):
            names = _names(unplaced, bank)
            pairs = {(name, rival) for name, at in names for rival in demand.conflicts[name] & self.names_in[at]}
            if pairs and self._free(unplaced, bank):
                apart.append(pairs)
        if not apart:
            self._raise_unplaced(unplaced)
        return min(apart, key=len)

    def write(self) -> None:
        """Write the places of all buffers into the operands, after `fit`.

        They are in banks that let units work at the same time, if a search finds such; then each buffer is moved to the
        bank that is now the best.
        """
        demand = self.demand
        if not self._is_balanced:
            places = dict(self.placed)
            if self._attempt(True, ATTEMPTS - 2) is not None:
                self._reset(True)
                for buffer, place in places.items():
                    self._allocate(buffer, *place)
        for buffer in demand.buffers:
            if buffer.is_parameter or len(demand.banks[buffer.number]) == 1:
                continue
            bank, base = self.placed.pop(buffer)
            self.names_in[bank].discard(buffer.memory)
            self._costs[bank] -= self._contention[demand.index[buffer.memory]]
            self.spaces[bank].release((*demand.span[buffer], base, base + buffer.vectors))
            self._place(buffer)
        for buffer, place in self.placed.items():
            buffer.bank, buffer.base = place
        places = {
            name: (MEMORIES[at], base)
            for buffer, (bank, base) in self.placed.items()
            for name, at in _names(buffer, bank)
        }
        for instruction in self.instructions:
            for number, (memory, base, strides, token_offset) in instruction.operands.items():
                if memory in places:
                    home, first = places[memory]
                    instruction.operands[number] = At(home, first + base, strides, token_offset)

    def _attempt(self, is_balanced: bool, attempts: int) -> Buffer | None:
        """Place all buffers; return None, or a buffer for which no space was found.

        `is_balanced`: whether banks are chosen by what units do at the same time. Such attempts go on from before.
        """
        # Buffers that found no space are placed first in the next attempt.
        first, unplaced = self._first if is_balanced else [], None
        for _ in range(attempts):
            self._reset(is_balanced)
            others = (buffer for buffer in self.demand.order if buffer not in first)
            order = (*sorted(first, key=self.demand.order.index), *others) if first else others
            unplaced = next((buffer for buffer in order if not self._place(buffer)), None)
            if unplaced is None:
                return None
            first.append(unplaced)
        return unplaced

    def _reset(self, is_balanced: bool) -> None:
        self._is_balanced = is_balanced
        self.spaces = [_Space(number) for number in range(len(DEPTHS))]
        self.names_in: list[set[Memory]] = [set() for _ in self.spaces]
        # By bank and memory: the contention with what is in the bank.
        self._costs = np.zeros((M.BANKS, len(self.demand.index) if is_balanced else 0))
        self.placed: dict[Buffer, tuple[int, int]] = {}

    def _allocate(self, buffer: Buffer, bank: int, base: int) -> None:
        self.placed[buffer] = bank, base
        for name, at in _names(buffer, bank):
            self.names_in[at].add(name)
            if self._is_balanced and name in self.demand.index:
                self._costs[at] += self._contention[self.demand.index[name]]
            self.spaces[at].take((*self.demand.span[buffer], base, base + buffer.vectors))

    def _free(self, buffer: Buffer, bank: int) -> tuple[int, int] | None:
        demand = self.demand
        return self.spaces[bank].place(buffer.vectors, *demand.span[buffer], buffer.number in demand.streamed)

    def _place(self, buffer: Buffer) -> bool:
        demand, names_in, choices, costs = self.demand, self.names_in, [], {}
        if self._is_balanced and buffer.is_in_bank:
            for row in (demand.index[name] for name in buffer.memories):
                costs[row] = self._costs[:, row].tolist()
        for bank, cost, memories in demand.choices[buffer]:
            for row, at, rivals in memories:
                if not rivals.isdisjoint(names_in[at]):
                    break
                if costs:
                    cost += costs[row][at]
            else:
                choices.append((cost, bank))
        choices.sort()
        span, behind = demand.span[buffer], buffer.number in demand.streamed
        best = (math.inf, 0, 0)
        for cost, bank in choices:  # the cheapest bank first: the space in it can only add to the cost
            if cost > best[0]:
                break
            found = self.spaces[bank].place(buffer.vectors, *span, behind)
            if found is not None and buffer.is_parameter:  # the gradient has the same address
                taken = self.spaces[GRADIENT_OF[bank]].taken
                found = found if all(found[0] >= high for *_, high in taken) else None
            if found is not None:
                best = min(best, (cost + self._reuse_cost(buffer, found[1]), bank, found[0]))
        if best[0] == math.inf:
            return False
        self._allocate(buffer, *best[1:])
        return True

    def _reuse_cost(self, buffer: Buffer, used: int) -> float:
        """Return the cost of vectors that the instruction `used` used last: scheduling may have to wait for it."""
        if not self._is_balanced or used < 0 or buffer.is_parameter:
            return 0
        begins, ends, (first, _) = self.demand.begins, self.demand.ends, self.demand.spans[buffer.number]
        return max(ends[used] + self.window - begins[first], 0)

    def _raise_unplaced(self, buffer: Buffer) -> None:
        number = max(self.demand.banks[buffer.number], key=lambda bank: self.spaces[bank].depth)
        span = self.demand.spans[buffer.number]
        space = self.spaces[number]
        taken = sum(high - low for begin, end, low, high in space.taken if begin <= span[1] and span[0] <= end)
        unit, way_out = "vectors", SMALLER_MODEL
        if buffer.home == STATISTICS:
            unit, way_out = "rows", "fewer encoders or heads, or a shorter sequence"
        free = f"{max(space.depth - taken, 0)} of its {space.depth} are free"
        share = (
            1.0 if buffer.is_parameter or buffer.home == STATISTICS else max(space.depth - taken, 0) / buffer.vectors
        )
        raise DoesNotFit(f"{buffer.name} takes {buffer.vectors} {unit} of {MEMORIES[number]}; {free}", way_out, share)


def _names(buffer: Buffer, bank: int) -> list[tuple[Memory, int]]:
    """Return the memories of a buffer, and the banks in which they are then."""
    return list(zip(buffer.memories, (bank, GRADIENT_OF.get(bank)), strict=False))


class Placement:
    """The sections of a sample with the copies that they need; `fitted` finds banks and addresses, with any window.

    `transferred`: as for `Buffer.allowed_banks`.
    """

    def __init__(
        self,
        made: list[Buffer],
        sections: Sequence[list[Instruction]],
        tokens: int,
        transferred: Collection[str] = (),
    ):
        self.made, self.tokens, self.transferred = made, tokens, transferred
        self._sections = with_copies(made, sections, transferred)
        self._demand = self._demand_of(self._sections)

    def _demand_of(self, sections: Sequence[list[Instruction]]) -> Demand:
        return Demand(self.made, [i for section in sections for i in section], self.tokens, self.transferred)

    def fitted(self, window: int = WINDOW) -> tuple[list[list[Instruction]], Assignment]:
        """Return the sections, of instructions of their own, and banks and addresses for all buffers.

        Raise `DoesNotFit` if the banks have no space.
        """
        sections, assignment = self._sections, Assignment(self._demand, window)
        for _ in range(MOST_COPIES):
            apart = assignment.fit()
            if not apart:
                sections = [list(map(copied, section)) for section in sections]
                assignment.instructions = [instruction for section in sections for instruction in section]
                return sections, assignment
            sections = [list(map(copied, section)) for section in sections]
            sections = with_copies(self.made, sections, self.transferred, apart)
            assignment = Assignment(self._demand_of(sections), window)
        raise DoesNotFit("the operands of an instruction have to be in one bank", "a smaller model")


def copied(instruction: Instruction) -> Instruction:
    """Return a copy of an instruction whose operands may be replaced."""
    return instruction.copy(operands=dict(instruction.operands))


def _conflicts(instructions: Sequence[Instruction]) -> dict[Memory, set[Memory]]:
    """Return, for each memory, those that need other banks: an instruction reads both, or writes both."""
    conflicts: dict[Memory, set[Memory]] = defaultdict(set)
    for instruction in instructions:
        for numbers in (instruction.reads(), instruction.writes()):
            names = [instruction.operands[number].memory for number in numbers]
            for name in names:
                conflicts[name].update({*names} - {name})
    return conflicts
