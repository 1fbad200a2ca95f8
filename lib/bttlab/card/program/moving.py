"""Parts of operands, and words copied into held memories."""

import numpy as np

from bttlab.card.program.builder import LANES, Builder
from bttlab.card.program.instruction import At, Bound, Loop, Slice


def part(whole: At, offset: int = 0, slice: Slice | None = None, **strides: int) -> At:
    """Return an operand that begins `offset` words after another, with strides of its own."""
    return At(whole.memory, whole.base + offset, strides, slice)


def identity(words: int) -> np.ndarray:
    """Return the permutation that leaves words as they are."""
    return np.arange(words * LANES).reshape(words, LANES)


def moved(builder: Builder, what: str, source: At | None, held: At, rows: Bound, words: int, first: int = 0) -> None:
    """Copy rows of words, or zeros, into the rows from `first` on of a held memory: its engine passes them on."""
    loops = [Loop("r", rows), Loop("w", words)]
    addend, also = source and part(source, r=words, w=1), part(held, w=1)
    builder.expand(held.number, what, loops, None, None, also=also, addend=addend, count=0, row=("r", first))
