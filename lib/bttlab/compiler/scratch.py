"""Scratch memory: short-lived intermediates, which get addresses after the instructions are scheduled.

With addresses fixed earlier, instructions would have to wait for all earlier users of their vectors, in the order of
the mathematics.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bttlab.compiler.access import accesses
from bttlab.compiler.instruction import DRAIN_0, ENGINE_0, ENGINE_1, At, Instruction, at
from bttlab.compiler.machine import M

FLOATING = 1 << 20  # first virtual address of vectors without an address: beyond the depth of every bank


class Allocation(NamedTuple):
    """A scratch allocation: its vectors, its lifetime, and the operands that use it, (instruction, operand number)."""

    vectors: int
    begin: int
    end: int
    operands: list[tuple[int, int]]


def scratch_bank(engine: int) -> int:
    """Return the bank of an engine's intermediates.

    The engine streams them, its drain writes them, and the other engine reads them as scalars.
    """
    reached = (
        M.reach(engine, 1, False).banks,
        M.reach(DRAIN_0 + engine, 4, True).banks,
        M.reach(ENGINE_0 + ENGINE_1 - engine, 2, False).banks,
    )
    return min(set.intersection(*map(set, reached)))


class Scratch:
    """Allocator of an engine's bank of intermediates."""

    def __init__(self, bank: int):
        self.bank, self._begins = bank, [FLOATING]
        self.depth = M.banks[bank].depth

    def allocate(self, vectors: int) -> At:
        """Allocate vectors; their address is virtual until `assign`."""
        self._begins.append(self._begins[-1] + vectors)
        return at(f"bank {self.bank}", self._begins[-2])

    def allocations(
        self, instructions: Sequence[Instruction], times: Sequence[tuple[int, int]]
    ) -> dict[int, Allocation]:
        """Return each allocation that instructions use, by its number.

        Parameters
        ----------
        times : sequence of (int, int)
            Begin and end of each instruction.
        """
        operands: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for i, instruction in enumerate(instructions):
            for access in accesses(instruction, f"bank {self.bank}".__eq__):
                if access.base >= FLOATING // 2:
                    first, _ = access.interval(())
                    operands[bisect_right(self._begins, first) - 1].append((i, access.operand))
        result = {}
        for n, uses in operands.items():
            begin, end = min(times[i][0] for i, _ in uses), max(times[i][1] for i, _ in uses)
            result[n] = Allocation(self._begins[n + 1] - self._begins[n], begin, end, uses)
        return result

    def next_fit(self, allocations: Mapping[int, Allocation]) -> dict[int, int] | None:
        """Return the first vector of each allocation, placed in order of begin, each after the one before.

        So vectors are reused as late as possible. Returns None if the allocations do not fit this way.
        """
        return self._places(allocations, sorted(allocations, key=lambda n: allocations[n].begin), True)

    def largest_first(self, allocations: Mapping[int, Allocation]) -> dict[int, int] | None:
        """Return the first vector of each allocation, the largest placed first, each at the lowest free address.

        So few vectors are lost to gaps. Returns None if the allocations do not fit this way.
        """
        return self._places(allocations, sorted(allocations, key=lambda n: -allocations[n].vectors), False)

    def _places(
        self, allocations: Mapping[int, Allocation], order: Sequence[int], is_next_fit: bool
    ) -> dict[int, int] | None:
        firsts: dict[int, int] = {}
        following = 0
        for n in order:
            own = allocations[n]
            others = [(firsts[m], allocations[m]) for m in firsts]
            taken = [(f, f + w.vectors) for f, w in others if w.begin <= own.end and own.begin <= w.end]
            for first in sorted({following, 0, *(end for _, end in taken)}, key=lambda f: (f < following, f)):
                last = first + own.vectors
                if last <= self.depth and all(last <= begin or end <= first for begin, end in taken):
                    break
            else:
                return None
            firsts[n] = first
            following = last if is_next_fit else 0
        return firsts

    def assign(
        self, instructions: Sequence[Instruction], allocations: Mapping[int, Allocation], firsts: Mapping[int, int]
    ) -> None:
        """Write the addresses into the operands."""
        for n, own in allocations.items():
            for i, number in own.operands:
                operand = instructions[i].operands[number]
                base = operand.base - self._begins[n] + firsts[n]
                instructions[i].operands[number] = At(operand.memory, base, operand.strides)


def assign_addresses(
    scratch: Sequence[Scratch], instructions: Sequence[Instruction], times: Sequence[tuple[int, int]]
) -> bool:
    """Assign addresses to all scratch allocations; return False, and change nothing, if they do not fit."""
    allocations = [one.allocations(instructions, times) for one in scratch]
    firsts = [one.next_fit(mine) or one.largest_first(mine) for one, mine in zip(scratch, allocations, strict=True)]
    if None in firsts:
        return False
    for one, mine, places in zip(scratch, allocations, firsts, strict=True):
        one.assign(instructions, mine, places)
    return True
