"""Parts of operands, and loads of operand buffers."""

import numpy as np

from bttlab.compiler.builder import LANES, Builder
from bttlab.compiler.instruction import At, Bound, Level, TokenOffset


def part(whole: At, offset: int = 0, token_offset: TokenOffset | None = None, **strides: int) -> At:
    """Return an operand that begins `offset` vectors after another, with new strides."""
    return At(whole.memory, whole.base + offset, strides, token_offset)


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
    addend, buffered_result = source and part(source, r=vectors, w=1), part(buffer, w=1)
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
