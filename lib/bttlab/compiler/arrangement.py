"""Arrangements of a tensor's elements in vectors, and the shuffles between them or into an operand buffer."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bttlab.compiler.builder import LANES, Builder, vectors_for
from bttlab.compiler.errors import ProgramError
from bttlab.compiler.instruction import At
from bttlab.compiler.machine import machine

M = machine()
Sizes = Mapping[str, int]
BLOCK_VECTORS = 48  # of a shuffle's block, where there is a choice: entries of its tables are few


@dataclass(frozen=True)
class Arrangement:
    """Indices from the outermost on; the last `lanes` of them are packed along the lanes, each row from a vector on.

    Attributes
    ----------
    lanes : int
        At least 1.
    """

    order: tuple[str, ...]
    lanes: int

    @property
    def outer(self) -> tuple[str, ...]:
        """The indices that count rows."""
        return self.order[: -self.lanes]

    @property
    def packed(self) -> tuple[str, ...]:
        """The indices along the lanes."""
        return self.order[-self.lanes :]

    def row_elements(self, sizes: Sizes) -> int:
        """Elements of a row."""
        return math.prod(sizes[i] for i in self.packed)

    def row_vectors(self, sizes: Sizes) -> int:
        """Vectors of a row."""
        return vectors_for(self.row_elements(sizes))

    def vectors(self, sizes: Sizes) -> int:
        """Vectors of the tensor."""
        return math.prod(sizes[i] for i in self.outer) * self.row_vectors(sizes)

    def strides(self, sizes: Sizes) -> dict[str, int]:
        """Vectors from an index of a row to the next."""
        strides, step = {}, self.row_vectors(sizes)
        for index in reversed(self.outer):
            strides[index] = step
            step *= sizes[index]
        return strides

    def views(self, sizes: Sizes) -> Iterator["Arrangement"]:
        """Yield the arrangements that are the same vectors: rows that fill whole vectors may be cut or put together."""
        whole = [n for n in range(1, len(self.order) + 1) if not math.prod(sizes[i] for i in self.order[-n:]) % LANES]
        yield self
        if self.lanes in whole:
            yield from (Arrangement(self.order, n) for n in whole if n != self.lanes)

    def places(self, sizes: Sizes, indices: Sequence[str]) -> np.ndarray:
        """Return element numbers (vector x LANES + lane) over some indices, with the others 0."""
        strides, step = {i: s * LANES for i, s in self.strides(sizes).items()}, 1
        for index in reversed(self.packed):
            strides[index] = step
            step *= sizes[index]
        grid = np.zeros([sizes[i] for i in indices], np.int64)
        for axis, index in enumerate(indices):
            shape = [1] * len(indices)
            shape[axis] = -1
            grid = grid + (np.arange(sizes[index]) * strides[index]).reshape(shape)
        return grid


def fused(loops: Iterable[tuple[int, dict[str, int]]]) -> list[tuple[int, dict[str, int]]]:
    """Merge neighbouring loops that step evenly through all operands; outermost first.

    Parameters
    ----------
    loops : iterable of (int, dict)
        Size, and stride by operand.
    """
    result: list[tuple[int, dict[str, int]]] = []
    for size, strides in loops:
        if size == 1:
            continue
        if result and all(result[-1][1][name] == size * stride for name, stride in strides.items()):
            result[-1] = (result[-1][0] * size, strides)
        else:
            result.append((size, strides))
    return result


def offsets(loops: Sequence[tuple[int, dict[str, int]]], names: Sequence[str]) -> Iterator[dict[str, int]]:
    """Yield each operand's offset for every iteration of loops that are unrolled into instructions."""
    for index in itertools.product(*(range(size) for size, _ in loops)):
        yield {name: sum(n * s[name] for n, (_, s) in zip(index, loops, strict=True)) for name in names}


def _even(vectors: np.ndarray) -> int | None:
    """Return the step between vectors, None if they are not evenly spaced."""
    steps = set(np.diff(vectors).tolist())
    return steps.pop() if len(steps) == 1 else (1 if not steps else None)


@dataclass(frozen=True)
class _Plan:
    """A shuffle: the permutation of a block, and the loops around it; all but one are unrolled into instructions."""

    permutation: np.ndarray
    vectors_in: int
    read: int
    write: int
    loops: list[tuple[int, dict[str, int]]]


def rearrange(
    builder: Builder, what: str, sizes: Sizes, source: At, of: Arrangement, target: At, to: Arrangement
) -> None:
    """Shuffle a tensor from one arrangement into another.

    Raises
    ------
    ProgramError
        If a block of it is larger than the shuffle unit's.
    """
    plan = _plan(what, sizes, of, to)
    count, strides = _longest(plan)
    for at in offsets([loop for loop in plan.loops if loop[1] is not strides], ("source", "target")):
        builder.shuffle(
            what,
            count,
            plan.permutation,
            At(source.memory, source.base + at["source"], {"block": strides["source"], "y": plan.read}),
            At(target.memory, target.base + at["target"], {"block": strides["target"], "y": plan.write}),
        )


def rearranging_steps(sizes: Sizes, of: Arrangement, to: Arrangement) -> int:
    """Return the steps of `rearrange`."""
    plan = _plan("", sizes, of, to)
    count, _ = _longest(plan)
    block = max(plan.vectors_in, len(plan.permutation)) + M.SHUFFLE_GAP
    return math.prod(size for size, _ in plan.loops) // count * (count + 1) * block


def load_operand(
    builder: Builder, what: str, sizes: Sizes, source: At, of: Arrangement, rows: str, buffer: At, vectors: Arrangement
) -> None:
    """Copy a tensor into an operand buffer: an index counts rows, the others lie in each row's vectors.

    Parameters
    ----------
    rows : str
        The index that counts rows, of size up to ROWS.
    vectors : Arrangement
        Of the other indices.

    Raises
    ------
    ProgramError
        If a block of it is larger than the shuffle unit's.
    """
    count = sizes[rows]
    outside: list[str] = []
    while True:  # as much in a block as there is room for; the rest in further blocks
        inside = [i for i in vectors.order if i not in outside]
        part = Arrangement((rows, *inside), min(vectors.lanes, len(inside)))
        block = _block(sizes, of, part, (rows, *inside))
        if block is not None and (len(block[0]) <= BLOCK_VECTORS or rows in of.packed) and block[3] == 1:
            break
        free = [i for i in inside if i not in vectors.packed and i not in of.packed]
        if not free:
            break
        outside.append(free[0])
    step = _even(np.unique(vectors.places(sizes, inside).reshape(-1) // LANES))
    strides = of.strides(sizes), vectors.strides(sizes)
    loops = fused((sizes[i], {"source": strides[0][i], "target": strides[1][i]}) for i in vectors.order if i in outside)
    if block is not None and step is not None and (rows in of.packed or not loops):
        permutation, vectors_in, read, _ = block
        split = vectors_in % count == 0
        along = {"x": read * vectors_in // count, "y": read} if split else {"y": read}
        blocks, stride = max(loops, key=lambda loop: loop[0], default=(1, {"source": 0, "target": 0}))
        for first in offsets([loop for loop in loops if loop[1] is not stride], ("source", "target")):
            builder.shuffle(
                what,
                blocks,
                permutation,
                At(source.memory, source.base + first["source"], along | {"block": stride["source"]}),
                also=At(buffer.memory, buffer.base + first["target"], {"y": step, "block": stride["target"]}),
                row=("x", 0),
                out=(count, len(permutation) // count),
            )
        return
    if rows in of.packed:
        raise ProgramError(_too_large(what))
    plan = _plan(what, sizes, of, vectors)
    for first in offsets(plan.loops, ("source", "target")):
        builder.shuffle(
            what,
            count,
            plan.permutation,
            At(source.memory, source.base + first["source"], {"block": strides[0][rows], "y": plan.read}),
            also=At(buffer.memory, buffer.base + first["target"], {"y": plan.write}),
            row=("block", 0),
        )


def _longest(plan: _Plan) -> tuple[int, dict[str, int]]:
    return max(plan.loops, key=lambda loop: loop[0], default=(1, {"source": 0, "target": 0}))


def _plan(what: str, sizes: Sizes, of: Arrangement, to: Arrangement) -> _Plan:
    """Choose the indices of a block: those whose lanes change, and as many more as make it worth its gap."""
    inside = [i for i in to.order if i in of.packed or i in to.packed]
    rest = [i for i in to.order if i not in inside]
    best, chosen = None, inside
    while True:
        inside = [i for i in to.order if i not in rest]
        block = _block(sizes, of, to, inside)
        if block is not None and (best is None or max(len(block[0]), block[1]) <= BLOCK_VECTORS):
            best, chosen = block, inside
        if not rest or math.prod(sizes[i] for i in inside) > M.SHUFFLE_VECTORS * LANES:
            break
        rest.pop()
    if best is None:
        raise ProgramError(_too_large(what))
    permutation, vectors_in, read, write = best
    strides = of.strides(sizes), to.strides(sizes)
    outside = [i for i in to.order if i not in chosen]
    loops = fused((sizes[i], {"source": strides[0][i], "target": strides[1][i]}) for i in outside)
    return _Plan(permutation, vectors_in, read, write, loops)


def _too_large(what: str) -> str:
    return (
        f"{what}: its elements are further apart than a block of the shuffle unit, {M.SHUFFLE_VECTORS} vectors: "
        "contract neighbouring cores first"
    )


def _block(sizes, of, to, inside) -> tuple[np.ndarray, int, int, int] | None:
    """Return the permutation of some indices' elements, the vectors in, and the steps between vectors in and out."""
    if math.prod(sizes[i] for i in inside) > M.SHUFFLE_VECTORS * LANES:
        return None
    places_in, places_out = (a.places(sizes, inside).reshape(-1) for a in (of, to))
    vectors_in, number_in = np.unique(places_in // LANES, return_inverse=True)
    vectors_out, number_out = np.unique(places_out // LANES, return_inverse=True)
    read, write = _even(vectors_in), _even(vectors_out)
    if read is None or write is None or max(len(vectors_in), len(vectors_out)) > M.SHUFFLE_VECTORS:
        return None
    permutation = np.full((len(vectors_out), LANES), -1)
    permutation[number_out, places_out % LANES] = number_in * LANES + places_in % LANES
    return permutation, len(vectors_in), read, write
