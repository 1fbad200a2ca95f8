"""Buffers: vectors of a bank that a program allocates by name and size; the banks that they may be in."""

from collections.abc import Collection
from dataclasses import dataclass

from bttlab.compiler.instruction import UPDATE, VECTOR
from bttlab.compiler.machine import M

# Bank of a parameter -> bank of its gradient, which has the same address there: the update unit reads both in one step.
GRADIENT_OF = dict(zip(M.reach(UPDATE, 0, False).banks, M.reach(UPDATE, 1, False).banks, strict=True))
MOMENTS = tuple(M.reach(UPDATE, number, False).banks[0] for number in (2, 3))
INNER = frozenset(range(M.BANKS)) - {M.IN_BANK, M.OUT_BANK, *MOMENTS}  # banks for buffers
LOADS, STORES = frozenset(M.reach(VECTOR, 3, True).banks), frozenset(M.reach(VECTOR, 0, False).banks)  # of COPY


@dataclass(eq=False)
class Buffer:
    name: str
    vectors: int
    # Number in the program: before the assignment an operand in it has the memory "matrix N", one in the gradient of a
    # parameter "gradient N".
    number: int = -1
    # Whether it is a parameter: it is never overwritten by other buffers, and has a gradient.
    is_parameter: bool = False
    is_accumulated: bool = False  # whether instructions add to its gradient; the update clears it
    is_persistent: bool = False  # whether it keeps its vectors for the whole program
    # Bank and first vector; known after the assignment.
    bank: int | None = None
    base: int = 0

    def allowed_banks(self, transferred: Collection[str]) -> frozenset[int]:
        """Return the banks that it may be in: LOAD, STORE and the update unit reach them, and they are large enough.

        `transferred` names buffers that LOAD and STORE transfer, and parameters whose gradients STORE transfers.
        """
        banks = INNER & LOADS & STORES if self.is_parameter or self.name in transferred else INNER
        if self.is_parameter:
            gradients = LOADS.intersection(M.reach(UPDATE, 1, True).banks) if self.is_accumulated else INNER
            if self.name in transferred:
                gradients &= STORES
            banks = frozenset(bank for bank in banks.intersection(GRADIENT_OF) if GRADIENT_OF[bank] in gradients)
        return frozenset(bank for bank in banks if M.banks[bank].depth >= self.vectors) or banks
