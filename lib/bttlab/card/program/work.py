"""Matrices on the way: taken from a bank while they are needed, given back after, and taken again in turn."""

from bttlab.card.program import banks
from bttlab.card.program.builder import Builder
from bttlab.card.program.errors import DoesNotFit
from bttlab.card.program.instruction import At

BUSY = 4  # places of a bank that a pass takes in turn: with fewer, it waits for them


class WorkMatrices:
    """Places for (tokens, features) matrices in the banks of `banks.WORK`.

    Parameters
    ----------
    builder : Builder
    words : int
        Of a matrix.
    """

    def __init__(self, builder: Builder, words: int):
        self._free: list[list[At]] = []
        for bank in banks.WORK:
            count = builder.banks[bank].depth // words
            if not count:
                builder.take("a matrix on the way", bank, words)
            self._free.append([builder.take("a matrix on the way", bank, words) for _ in range(count)])

    def has_spare(self, bank: int) -> bool:
        """Return whether one of the banks has more places than a pass keeps busy."""
        return len(self._free[bank]) > BUSY

    def take(self, bank: int) -> At:
        """Return a place in one of the banks, the one that was given back longest ago."""
        if not self._free[bank]:
            raise DoesNotFit(f"bank {banks.WORK[bank]} holds no more (tokens, features) matrices", "a shorter sequence")
        return self._free[bank].pop(0)

    def give(self, *matrices: At) -> None:
        """Give places back."""
        for matrix in matrices:
            self._free[banks.WORK.index(matrix.number)].append(matrix)
