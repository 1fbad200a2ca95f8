"""Parts of operands, and words copied into held memories."""

import numpy as np

from bttlab.card.program.builder import LANES, ROWS, Builder
from bttlab.card.program.instruction import At, Bound, Loop, Slice, most_of


def part(whole: At, offset: int = 0, slice: Slice | None = None, **strides: int) -> At:
    """Return an operand that begins `offset` words after another, with strides of its own."""
    return At(whole.memory, whole.base + offset, strides, slice)


def identity(words: int) -> np.ndarray:
    """Return the permutation that leaves words as they are."""
    return np.arange(words * LANES).reshape(words, LANES)


def moved(builder: Builder, what: str, source: At, held: At, rows: Bound, words: int) -> None:
    """Copy rows of words into the rows of a held memory: its engine passes them on."""
    loops = [Loop("r", rows), Loop("w", words)]
    addend, also = part(source, r=words, w=1), part(held, w=1)
    builder.expand(held.number, what, loops, None, None, also=also, addend=addend, count=0, row=("r", 0))


def held_tokens(builder: Builder, what: str, source: At, held: At, tokens: Bound, words: int, rows) -> None:
    """Copy a matrix (tokens, words) into a held memory: token t into row t mod ROWS, block after block."""
    for block in range(-(-most_of(tokens) // ROWS)):
        builder.shuffle(
            what,
            rows(block),
            identity(words),
            part(source, block * ROWS * words, block=words, y=1),
            also=part(held, block * words, y=1),
            row=("block", 0),
        )
