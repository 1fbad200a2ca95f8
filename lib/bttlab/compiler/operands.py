"""Loads of operand buffers, and zeros in banks."""

from collections import Counter

import numpy as np

from bttlab.compiler.builder import LANES, Builder
from bttlab.compiler.instruction import ENGINE_0, ENGINE_1, VECTOR, At, Bound, Level
from bttlab.compiler.machine import M

RESULT = {VECTOR: 3, ENGINE_0: 4, ENGINE_1: 4}  # number of a unit's operand


def identity(vectors: int) -> np.ndarray:
    return np.arange(vectors * LANES).reshape(vectors, LANES)


def load_rows(
    builder: Builder, what: str, source: At | None, buffer: At, rows: Bound, vectors: int, first: int = 0
) -> None:
    """Emit a load of rows of an operand buffer by its engine, from a bank or with zeros.

    `source`: place of the first vector in a bank; None for zeros.
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


def clear(builder: Builder, what: str, place: At, vectors: int, steps: Counter[int]) -> None:
    """Emit zeros to vectors of a bank, by the unit with the fewest `steps` of those that reach it."""
    bank, loops, result = int(place.memory.split()[1]), [Level("w", vectors)], place.part(w=1)
    units = [unit for unit, number in RESULT.items() if bank in M.reach(unit, number, True).banks]
    unit = min(units, key=lambda unit: steps[unit])
    steps[unit] += vectors
    if unit == VECTOR:
        builder.vector(M.COPY, what, loops, r0=result)
    else:
        builder.expand(unit, what, loops, None, None, result, count=0)
