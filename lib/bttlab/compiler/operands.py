"""Parts of operands, and loads of operand buffers."""

import numpy as np

from bttlab.compiler.builder import LANES, Builder
from bttlab.compiler.instruction import At, Bound, Level


def identity(vectors: int) -> np.ndarray:
    """Return the identity permutation of vectors."""
    return np.arange(vectors * LANES).reshape(vectors, LANES)


def load_rows(
    builder: Builder, what: str, source: At | None, buffer: At, rows: Bound, vectors: int, first: int = 0
) -> None:
    """Emit a load of rows of an operand buffer by its engine, from a bank or with zeros.

    Parameters
    ----------
    source : At or None
        Place of the first vector in a bank; None for zeros.
    rows : int or Register
        Number of rows, the first of which is `first`.
    vectors : int
        Vectors of a row.
    """
    loops = [Level("r", rows), Level("w", vectors)]
    addend, buffered_result = source and source.part(r=vectors, w=1), buffer.part(w=1)
    builder.expand(
        buffer.number,
        what,
        loops,
        None,
        None,
        buffered_result=buffered_result,
        addend=addend,
        count=0,
        row=("r", first),
    )
