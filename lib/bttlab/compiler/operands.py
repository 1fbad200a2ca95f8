"""Parts of operands, and vectors copied into operand buffers."""

import numpy as np

from bttlab.compiler.builder import LANES, Builder
from bttlab.compiler.instruction import At, Bound, Level, TokenOffset


def part(whole: At, offset: int = 0, token_offset: TokenOffset | None = None, **strides: int) -> At:
    """Return an operand that begins `offset` vectors after another, with strides of its own."""
    return At(whole.memory, whole.base + offset, strides, token_offset)


def identity(vectors: int) -> np.ndarray:
    """Return the permutation that leaves vectors as they are."""
    return np.arange(vectors * LANES).reshape(vectors, LANES)


def moved(
    builder: Builder, what: str, source: At | None, buffer: At, rows: Bound, vectors: int, first: int = 0
) -> None:
    """Copy rows of vectors, or zeros, into the rows from `first` on of an operand buffer: its engine passes them on."""
    loops = [Level("r", rows), Level("w", vectors)]
    addend, also = source and part(source, r=vectors, w=1), part(buffer, w=1)
    builder.expand(buffer.number, what, loops, None, None, also=also, addend=addend, count=0, row=("r", first))
