"""Temporary (tokens, features) matrices: taken from a bank, given back, and reused in first-in, first-out order."""

from bttlab.compiler import banks
from bttlab.compiler.builder import Builder
from bttlab.compiler.errors import DoesNotFit
from bttlab.compiler.instruction import At

BUSY = 4  # places of a bank that a pass keeps busy: with fewer, it waits


class WorkMatrices:
    """Places for (tokens, features) matrices in the banks of `banks.WORK`.

    Parameters
    ----------
    vectors : int
        Of a matrix.
    """

    def __init__(self, builder: Builder, vectors: int):
        self._free: list[list[At]] = []
        for bank in banks.WORK:
            count = builder.banks[bank].depth // vectors
            if not count:
                builder.take("temporary matrix", bank, vectors)
            self._free.append([builder.take("temporary matrix", bank, vectors) for _ in range(count)])

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
