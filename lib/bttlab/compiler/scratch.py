"""Scratch vectors: intermediates of a few instructions, which get addresses when the instructions have an order.

Fixed addresses would tie the order to that of the mathematics: an instruction would wait until all earlier users of its
vectors have ended.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bttlab.compiler.banks import scratch_bank
from bttlab.compiler.builder import Builder
from bttlab.compiler.instruction import MACHINE, At, Instruction, at

FLOATING = 1 << 20  # no bank has such addresses: here lies what has none of its own yet


class Wanted(NamedTuple):
    """Vectors that are needed from one time to another, and the operands that name them: (instruction, its number)."""

    vectors: int
    begin: int
    end: int
    operands: list[tuple[int, int]]


class Scratch:
    """The vectors of an engine's bank of intermediates, which instructions need for a while."""

    def __init__(self, builder: Builder, engine: int):
        self.bank, self._begins = scratch_bank(engine), [FLOATING]
        self.depth = MACHINE.banks[self.bank].depth
        whole = builder.new_buffer("scratch", self.depth)
        whole.bank = self.bank
        builder.scratch.append(self)

    def take(self, vectors: int) -> At:
        """Return so many vectors, which have no place yet."""
        self._begins.append(self._begins[-1] + vectors)
        return at(f"bank {self.bank}", self._begins[-2])

    def wanted(self, instructions: Sequence[Instruction], times: Sequence[tuple[int, int]]) -> dict[int, Wanted]:
        """Return what instructions need, by its place among all that was taken.

        Parameters
        ----------
        times : sequence of (int, int)
            When each begins and ends.
        """
        operands: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for i, instruction in enumerate(instructions):
            for number, operand in instruction.operands.items():
                if operand.memory == f"bank {self.bank}" and operand.base >= FLOATING // 2:
                    first, _ = instruction.span(number, ())
                    operands[bisect_right(self._begins, first) - 1].append((i, number))
        wanted_at = {}
        for n, uses in operands.items():
            begin, end = min(times[i][0] for i, _ in uses), max(times[i][1] for i, _ in uses)
            wanted_at[n] = Wanted(self._begins[n + 1] - self._begins[n], begin, end, uses)
        return wanted_at

    def in_turn(self, wanted: Mapping[int, Wanted]) -> dict[int, int] | None:
        """Return the first vector of each, behind the one before, so that vectors are used again as late as can be;
        None
        if they do not fit that way.
        """
        return self._places(wanted, sorted(wanted, key=lambda n: wanted[n].begin), True)

    def largest_first(self, wanted: Mapping[int, Wanted]) -> dict[int, int] | None:
        """Return the first vector of each, as low as it goes: little is lost between them."""
        return self._places(wanted, sorted(wanted, key=lambda n: -wanted[n].vectors), False)

    def _places(self, wanted: Mapping[int, Wanted], order: Sequence[int], in_turn: bool) -> dict[int, int] | None:
        firsts: dict[int, int] = {}
        following = 0
        for n in order:
            own = wanted[n]
            others = [(firsts[m], wanted[m]) for m in firsts]
            taken = [(f, f + w.vectors) for f, w in others if w.begin <= own.end and own.begin <= w.end]
            for first in sorted({following, 0, *(end for _, end in taken)}, key=lambda f: (f < following, f)):
                last = first + own.vectors
                if last <= self.depth and all(last <= begin or end <= first for begin, end in taken):
                    break
            else:
                return None
            firsts[n] = first
            following = last if in_turn else 0
        return firsts

    def assign(self, instructions: Sequence[Instruction], wanted: Mapping[int, Wanted], firsts: Mapping[int, int]):
        """Write the addresses into the operands."""
        for n, own in wanted.items():
            for i, number in own.operands:
                operand = instructions[i].operands[number]
                base = operand.base - self._begins[n] + firsts[n]
                instructions[i].operands[number] = At(operand.memory, base, operand.strides)


def assign_addresses(
    scratch: Sequence[Scratch], instructions: Sequence[Instruction], times: Sequence[tuple[int, int]]
) -> bool:
    """Give all that instructions need in banks its addresses, if it fits; return whether it does."""
    wanted = [one.wanted(instructions, times) for one in scratch]
    firsts = [one.in_turn(needs) or one.largest_first(needs) for one, needs in zip(scratch, wanted, strict=True)]
    if None in firsts:
        return False
    for one, needs, places in zip(scratch, wanted, firsts, strict=True):
        one.assign(instructions, needs, places)
    return True
