"""Buffers: vectors or statistics that a program allocates by name and size; the memories that they may be in."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from bttlab.compiler.instruction import GRADIENT, STATISTIC, VALUES, At, Memory
from bttlab.compiler.machine import M

# Bank of a parameter -> bank of its gradient, which has the same address there: the update unit reads both in one step.
GRADIENT_OF = dict(zip(M.reach(M.UPDATE, 0, False).banks, M.reach(M.UPDATE, 1, False).banks, strict=True))
MOMENTS = tuple(M.reach(M.UPDATE, number, False).banks[0] for number in (2, 3))
INNER = frozenset(range(M.BANKS)) - {M.IN_BANK, M.OUT_BANK, *MOMENTS}  # banks for buffers
# All memories that have buffers, and their depths in vectors; row n of statistics is in all four.
STATISTICS = Memory(STATISTIC, 0)
MEMORIES = (*map(Memory.bank, range(M.BANKS)), *map(Memory.operand_buffer, range(M.ENGINES)), STATISTICS)
DEPTHS = (*(bank.depth for bank in M.banks), *[M.OPERAND_BUFFER_DEPTH] * M.ENGINES, M.STATISTICS)
LOADS, STORES = frozenset(M.reach(M.VECTOR, 3, True).banks), frozenset(M.reach(M.VECTOR, 0, False).banks)  # of COPY


@dataclass(eq=False)
class Buffer:
    name: str
    vectors: int
    number: int = -1  # in the program
    home: Memory | None = None  # the memory that it is in, an operand buffer or STATISTICS; None for any bank
    # Whether it is a parameter: it is never overwritten by other buffers, and has a gradient.
    is_parameter: bool = False
    is_accumulated: bool = False  # whether instructions add to its gradient; the update clears it
    is_persistent: bool = False  # whether it keeps its vectors for the whole program
    # Number of its memory in MEMORIES, and first vector; known after the assignment.
    bank: int | None = None
    base: int = 0

    @cached_property
    def memory(self) -> Memory:
        """Memory of an operand in it, before the assignment."""
        return Memory(VALUES, self.number)

    @cached_property
    def memory_of_gradient(self) -> Memory:
        """Memory of an operand in its gradient, before the assignment."""
        return Memory(GRADIENT, self.number)

    @cached_property
    def memories(self) -> tuple[Memory, ...]:
        """Its memory and, if it is a parameter, that of its gradient, before the assignment."""
        return (self.memory, self.memory_of_gradient) if self.is_parameter else (self.memory,)

    @property
    def gradient(self) -> "Buffer":
        return replace(self, bank=GRADIENT_OF[self.bank])

    @property
    def is_in_bank(self) -> bool:
        return self.home is None

    def allowed_banks(self, transferred: Collection[str]) -> frozenset[int]:
        """Return the memories that it may be in: LOAD, STORE and the update unit reach them, and they are large enough.

        `transferred` names buffers that LOAD and STORE transfer, and parameters whose gradients STORE transfers.
        """
        if self.home is not None:
            return frozenset({MEMORIES.index(self.home)})
        banks = INNER & LOADS & STORES if self.is_parameter or self.name in transferred else INNER
        if self.is_parameter:
            gradients = LOADS.intersection(M.reach(M.UPDATE, 1, True).banks) if self.is_accumulated else INNER
            if self.name in transferred:
                gradients &= STORES
            banks = frozenset(bank for bank in banks.intersection(GRADIENT_OF) if GRADIENT_OF[bank] in gradients)
        return frozenset(bank for bank in banks if M.banks[bank].depth >= self.vectors) or banks


def buffer_of(place: At, made: Sequence[Buffer]) -> Buffer | None:
    """Return the buffer of an operand, one of `made`; None after the assignment."""
    is_buffer = place.memory is not None and place.memory.kind in (VALUES, GRADIENT)
    return made[place.memory.number] if is_buffer else None
