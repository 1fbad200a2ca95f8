"""A product of two tensors on an engine, in each of its three ways, for any arrangement of their indices.

C = A B sums over the indices k that A and B share; m are the others of A, n those of B. An engine can

    EXPAND      C[m, n] = sum of A[m, k] B[k, n]: k counts the rows of B, in an operand buffer; n lies along its vectors
    REDUCE      the same, where n counts the rows of B, in an operand buffer, and k lies along the vectors of both
    ACCUMULATE  the same, where m lies along the lanes of A, n along those of B, and k is summed over in time

Rows are up to ROWS: where there are more, an index is unrolled into several instructions (*passes*).
"""

from collections.abc import Sequence
from dataclasses import replace

from bttlab.compiler.arrangement import Arrangement, Sizes, Stored, elements, nests
from bttlab.compiler.builder import Builder, padded
from bttlab.compiler.errors import ProgramError
from bttlab.compiler.instruction import LEVELS, Level
from bttlab.compiler.machine import machine

M = machine()


def expand(b: Builder, engine: int, what: str, sizes: Sizes, a: Stored, k: Sequence[str], held: Stored, c: Stored):
    """C = A B: the last of `k` counts the rows of B, the others are passes."""
    operands = {"scalars": a, "buffer": held, "result": c}
    vectors = c.arrangement.row_vectors(sizes), {"scalars": 0, "buffer": 1, "result": 1}
    started: set[int] = set()
    for levels, at in nests(sizes, operands, k[:-1], c.arrangement.outer, LEVELS, vectors):
        result, levels = at["result"], levels or [Level("one", 1)]
        addend = result if result.base in started else None
        started.add(result.base)
        b.expand(engine, what, levels, at["buffer"], at["scalars"], result, addend=addend, count=sizes[k[-1]])


def reduce(b: Builder, engine: int, what: str, sizes: Sizes, a: Stored, k: Sequence[str], held: Stored, c: Stored):
    """C = A B: the first of the indices of B, as it is held, counts its rows; `k`, along the vectors of both, are the
    last, and those between are passes.
    """
    order = held.arrangement.order
    fixed = order[1 : len(order) - len(k)]
    depth = Arrangement(tuple(k), held.arrangement.lanes).vectors(sizes)
    operands = {"buffer": held, "stream": a, "result": c}
    outer = [i for i in c.arrangement.order if i not in order]
    for levels, at in nests(sizes, operands, fixed, outer, LEVELS - 1):
        *loops, last = levels or [Level("m", 1)]
        parts = -(-last.bound // M.ACCUMULATORS)
        each = last.bound // parts
        if each * parts == last.bound and len(levels) < LEVELS - 1:  # a loop for them, not an instruction for each
            loops, last = [*loops, Level("part", parts)], Level(last.name, each)
            at = {
                n: replace(one, strides=one.strides | {"part": each * one.strides.get(last.name, 0)})
                for n, one in at.items()
            }
        loops = [*loops, Level("w", depth + 1), padded(last.name, last.bound)]
        buffer, stream = (replace(at[name], strides=at[name].strides | {"w": 1}) for name in ("buffer", "stream"))
        b.reduce(engine, what, loops, "w", buffer, stream, at["result"], count=sizes[held.rows])


def accumulate(
    b: Builder, engine: int, what: str, sizes: Sizes, a: Stored, m: Sequence[str], stream: Stored, c: Stored
) -> None:
    """C = A B: the lanes of A count the rows of C, the others of `m` are passes; the vectors of B are those of C."""
    k = [i for i in stream.arrangement.order if i in a.arrangement.order]
    rows = a.arrangement.packed
    vectors = c.arrangement.vectors(sizes) // elements(sizes, m)
    operands = {"scalars": a, "stream": stream, "result": c}
    step = c.strides(sizes)[rows[-1]]
    for levels, at in nests(sizes, operands, [i for i in m if i not in rows], k, LEVELS):
        loops = levels or [Level("k", 1)]
        if len(loops) >= LEVELS:
            raise ProgramError(f"{what}: it sums over {len(loops)} loops, an instruction has {LEVELS - 1} for it")
        summed, names = replace(at["stream"], strides=at["stream"].strides | {"w": 1}), [loop.name for loop in loops]
        loops, rows_of_c = [*loops, padded("w", vectors)], Level("r", elements(sizes, rows))
        result = replace(at["result"], strides={"r": step, "w": 1})
        b.accumulate(engine, what, loops, names, at["scalars"], summed, rows_of_c, result)


def expand_steps(sizes: Sizes, k: Sequence[str], c: Arrangement) -> int:
    """Return the steps of `expand`."""
    return elements(sizes, k[:-1]) * c.vectors(sizes)


def reduce_steps(sizes: Sizes, m: Sequence[str], held: Arrangement, fixed: Sequence[str]) -> int:
    """Return the steps of `reduce`."""
    sums = max(elements(sizes, m), M.SUM_DISTANCE)
    depth = held.vectors(sizes) // elements(sizes, (held.order[0], *fixed))
    return sums * (depth + 1) * elements(sizes, fixed)


def accumulate_steps(sizes: Sizes, k: Sequence[str], runs: int, vectors: int, rows: int) -> int:
    """Return the steps of `accumulate`, and of the drain after it."""
    return runs * (elements(sizes, k) * max(vectors, M.SUM_DISTANCE) + rows * vectors)
