"""A product of two tensors on an engine, in each of its three ways, for any arrangement of their indices.

C = A B sums over the indices k that A and B share; m are the others of A, n those of B. An engine can

    EXPAND      C[m, n] = sum of A[m, k] B[k, n]: k counts the rows of B, in an operand buffer; n lies along its vectors
    REDUCE      the same, where n counts the rows of B, in an operand buffer, and k lies along the vectors of both
    ACCUMULATE  the same, where m lies along the lanes of A, n along those of B, and k is summed over in time

Rows are up to ROWS: where there are more, an index is unrolled into several instructions (*passes*).
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from bttlab.compiler.arrangement import Arrangement, Sizes, fused, offsets
from bttlab.compiler.builder import LANES, Builder, padded
from bttlab.compiler.errors import ProgramError
from bttlab.compiler.instruction import LEVELS, At, Level
from bttlab.compiler.machine import machine

M = machine()


@dataclass(frozen=True)
class Stored:
    """A tensor, or a part of it, as it lies in a bank or an operand buffer."""

    place: At
    arrangement: Arrangement

    def strides(self, sizes: Sizes) -> dict[str, int]:
        """Vectors from an index to the next."""
        return self.arrangement.strides(sizes)


def passes(sizes: Sizes, indices: Sequence[str]) -> list[dict[str, int]]:
    """Return the values of indices that are unrolled into instructions."""
    return [
        dict(zip(indices, values, strict=True)) for values in itertools.product(*(range(sizes[i]) for i in indices))
    ]


def offset_of(strides: dict[str, int], values: dict[str, int]) -> int:
    """Return the vectors from the first element to the one at these values of its indices."""
    return sum(strides[i] * n for i, n in values.items())


def _split(
    sizes: Sizes, indices: Sequence[str], strides: dict[str, dict[str, int]], most: int
) -> tuple[list, list[tuple[int, dict[str, int]]]]:
    """Split loops into those that are unrolled into instructions and up to `most` of the nest."""
    loops = fused((sizes[i], {name: s[i] for name, s in strides.items()}) for i in indices)
    return loops[: max(len(loops) - most, 0)], loops[max(len(loops) - most, 0) :]


def expand(
    b: Builder,
    engine: int,
    what: str,
    sizes: Sizes,
    a: Stored,
    k: Sequence[str],
    buffer: At,
    vectors: Arrangement,
    c: Stored,
) -> None:
    """C = A B: the last of `k` counts the rows of B, loaded as `vectors` n; the others are passes."""
    names = ("scalars", "buffer", "result")
    strides = dict(zip(names, (a.strides(sizes), vectors.strides(sizes), c.strides(sizes)), strict=True))
    row_vectors = c.arrangement.row_vectors(sizes)
    steps = {i: {name: strides[name].get(i, 0) for name in names} for i in c.arrangement.outer}
    loops = fused([*((sizes[i], steps[i]) for i in steps), (row_vectors, {"scalars": 0, "buffer": 1, "result": 1})])
    unrolled, nest = loops[: max(len(loops) - LEVELS, 0)], loops[max(len(loops) - LEVELS, 0) :]
    for number, values in enumerate(passes(sizes, k[:-1])):
        for first in offsets(unrolled, names):
            along = {name: {f"m{n}": s[name] for n, (_, s) in enumerate(nest) if s[name]} for name in names}
            result = At(c.place.memory, c.place.base + first["result"], along["result"])
            b.expand(
                engine,
                what,
                [Level(f"m{n}", size) for n, (size, _) in enumerate(nest)] or [Level("one", 1)],
                At(buffer.memory, buffer.base + number * vectors.vectors(sizes) + first["buffer"], along["buffer"]),
                At(
                    a.place.memory,
                    a.place.base + first["scalars"] + offset_of(strides["scalars"], values),
                    along["scalars"],
                ),
                result,
                addend=result if number else None,
                count=sizes[k[-1]],
            )


def reduce(
    b: Builder,
    engine: int,
    what: str,
    sizes: Sizes,
    a: Stored,
    k: Sequence[str],
    buffer: At,
    n: Sequence[str],
    c: Stored,
) -> None:
    """C = A B: the last of `n` counts the rows of B, the others are passes; `k` lies along the vectors of both."""
    stream, result = a.strides(sizes), c.strides(sizes)
    row = Arrangement(tuple(k), min(a.arrangement.lanes, len(k)))
    depth = row.vectors(sizes)
    m = [i for i in c.arrangement.order if i not in n]
    unrolled, nest = _split(sizes, m, {"stream": stream, "result": result}, LEVELS - 1)
    size, strides = nest.pop() if nest else (1, {"stream": 0, "result": 0})
    inner = max(d for d in range(1, min(size, M.ACCUMULATORS) + 1) if size % d == 0)
    if inner < size:  # more sums than an engine's row has places for
        outer = (size // inner, {name: s * inner for name, s in strides.items()})
        if len(nest) == LEVELS - 2:
            unrolled.append(nest.pop(0))
        nest.append(outer)
    names = [f"m{i}" for i in range(len(nest))]
    for number, values in enumerate(passes(sizes, n[:-1])):
        for at_ in offsets(unrolled, ("stream", "result")):
            parts = {
                of: {name: s[of] for name, (_, s) in zip(names, nest, strict=True)} | {"i": strides[of]}
                for of in ("stream", "result")
            }
            b.reduce(
                engine,
                what,
                [
                    *(Level(name, s) for name, (s, _) in zip(names, nest, strict=True)),
                    Level("w", depth + 1),
                    padded("i", inner),
                ],
                "w",
                At(buffer.memory, buffer.base + number * depth, {"w": 1}),
                At(a.place.memory, a.place.base + at_["stream"], parts["stream"] | {"w": 1}),
                At(c.place.memory, c.place.base + at_["result"] + offset_of(result, values), parts["result"]),
                count=sizes[n[-1]],
            )


def accumulate(
    b: Builder, engine: int, what: str, sizes: Sizes, a: Stored, m: Sequence[str], other: Stored, c: Stored
) -> None:
    """C = A B: the lanes of A count the rows of C, the others of `m` are passes; the vectors of B are those of C."""
    scalars, stream, result = (one.strides(sizes) for one in (a, other, c))
    k = [i for i in other.arrangement.order if i in a.arrangement.order]
    loops = fused((sizes[i], {"scalars": scalars[i], "stream": stream[i]}) for i in k) or [
        (1, {"scalars": 0, "stream": 0})
    ]
    if len(loops) > LEVELS - 1:
        raise ProgramError(f"{what}: it sums over {len(loops)} loops, an instruction has {LEVELS - 1} for it")
    vectors = Arrangement(tuple(i for i in other.arrangement.order if i not in k), other.arrangement.lanes).vectors(
        sizes
    )
    names = [f"k{n}" for n in range(len(loops))]
    rows = a.arrangement.packed
    count, step = math.prod(sizes[i] for i in rows), result[rows[-1]]
    for values in passes(sizes, [i for i in m if i not in rows]):
        b.accumulate(
            engine,
            what,
            [*(Level(name, size) for name, (size, _) in zip(names, loops, strict=True)), padded("w", vectors)],
            names,
            At(
                a.place.memory,
                a.place.base + offset_of(scalars, values),
                {name: s["scalars"] for name, (_, s) in zip(names, loops, strict=True)},
            ),
            At(
                other.place.memory,
                other.place.base,
                {name: s["stream"] for name, (_, s) in zip(names, loops, strict=True)} | {"w": 1},
            ),
            Level("r", count),
            At(c.place.memory, c.place.base + offset_of(result, values), {"r": step, "w": 1}),
        )


def expand_steps(sizes: Sizes, m: Sequence[str], k: Sequence[str], vectors: Arrangement) -> int:
    """Return the steps of `expand`."""
    return math.prod(sizes[i] for i in (*m, *k[:-1])) * vectors.vectors(sizes)


def reduce_steps(sizes: Sizes, m: Sequence[str], row: Arrangement, n: Sequence[str]) -> int:
    """Return the steps of `reduce`."""
    sums = max(math.prod(sizes[i] for i in m), M.SUM_DISTANCE)
    return sums * (row.vectors(sizes) + 1) * math.prod(sizes[i] for i in n[:-1])


def accumulate_steps(sizes: Sizes, k: Sequence[str], runs: int, vectors: int, rows: int) -> int:
    """Return the steps of `accumulate`, and of the drain after it."""
    return runs * (math.prod(sizes[i] for i in k) * max(vectors, M.SUM_DISTANCE) + rows * vectors)


def one_vector(sizes: Sizes, indices: Sequence[str]) -> bool:
    """Return whether indices, packed, fill a vector at most."""
    return math.prod(sizes[i] for i in indices) <= LANES
