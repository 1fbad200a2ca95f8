"""Arrangements of a tensor's elements in vectors, and the shuffles that rearrange tensors or load operand buffers."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from bttlab.compiler.builder import LANES, Builder, vectors_for
from bttlab.compiler.errors import ProgramError
from bttlab.compiler.instruction import At, Bound, Level, Register, max_of
from bttlab.compiler.machine import M

INSTRUCTION_COST = 16  # cycles, for each instruction of a shuffle
BLOCKS = 4096  # size of the cache of blocks: a model of the paper has 200
_Block = tuple[np.ndarray, int, int, int]  # the permutation, the vectors in, and the strides of vectors in and out


class Sizes(dict[str, int]):
    """Sizes of indices.

    `bounds`: bounds of indices whose size depends on the sample: each is a loop of its own, outside a shuffle's blocks.
    """

    def __init__(self, sizes: Mapping[str, int], bounds: Mapping[str, Register] = MappingProxyType({})):
        super().__init__(sizes)
        self.bounds = dict(bounds)
        self.plans: dict[tuple, _Plan | None] = {}  # cache of shuffle plans
        self.views: dict[Arrangement, tuple[Arrangement, ...]] = {}  # cache of `Arrangement.views`

    def bound(self, index: str) -> Bound:
        """Return the size of an index: a register where it depends on the sample."""
        return self.bounds.get(index, self[index])


def elements(sizes: Sizes, indices: Iterable[str]) -> int:
    return math.prod(map(sizes.__getitem__, indices))


class Arrangement(NamedTuple):
    """Order of a tensor's indices in memory."""

    order: tuple[str, ...]  # indices, outermost first
    # Number of last indices that are packed along the lanes, at least 1. The others count rows; each row begins with a
    # vector.
    lanes: int

    def __str__(self) -> str:
        return " ".join((*self.outer, f"[{' '.join(self.packed)}]"))

    @property
    def outer(self) -> tuple[str, ...]:
        """The indices that count rows."""
        return self.order[: -self.lanes]

    @property
    def packed(self) -> tuple[str, ...]:
        """The indices along the lanes."""
        return self.order[-self.lanes :]

    def row_vectors(self, sizes: Sizes) -> int:
        return vectors_for(elements(sizes, self.packed))

    def vectors(self, sizes: Sizes) -> int:
        return elements(sizes, self.outer) * self.row_vectors(sizes)

    def strides(self, sizes: Sizes) -> dict[str, int]:
        """Return the stride, in vectors, of each index that counts rows."""
        strides, step = {}, self.row_vectors(sizes)
        for index in reversed(self.outer):
            strides[index] = step
            step *= sizes[index]
        return strides

    def views(self, sizes: Sizes) -> tuple["Arrangement", ...]:
        """Return the arrangements with the same vectors, itself first: rows of whole vectors can be split or merged."""
        if self not in sizes.views:
            aligned = [n for n in range(1, len(self.order) + 1) if not elements(sizes, self.order[-n:]) % LANES]
            others = [n for n in aligned if n != self.lanes] if self.lanes in aligned else []
            sizes.views[self] = self, *(Arrangement(self.order, n) for n in others)
        return sizes.views[self]

    def element_strides(self, sizes: Sizes, indices: Sequence[str]) -> tuple[int, ...]:
        """Return the stride of each of some indices, in elements (vector x LANES + lane)."""
        strides, step = {i: s * LANES for i, s in self.strides(sizes).items()}, 1
        for index in reversed(self.packed):
            strides[index] = step
            step *= sizes[index]
        return tuple(map(strides.__getitem__, indices))


class Stored(NamedTuple):
    """A tensor's place in a bank or an operand buffer, and its arrangement there."""

    name: str
    place: At
    arrangement: Arrangement
    is_buffered: bool = False  # whether the place is in an operand buffer

    @property
    def rows(self) -> str:
        """The index that counts the rows of an operand buffer: the outermost; empty for a tensor in a bank."""
        return self.arrangement.order[0] if self.is_buffered else ""

    def strides(self, sizes: Sizes) -> dict[str, int]:
        """Return the stride, in vectors, of each index that counts rows; 0 along the rows of an operand buffer."""
        return self.arrangement.strides(sizes) | ({self.rows: 0} if self.rows else {})


class Loop(NamedTuple):
    size: Bound
    strides: dict[str, int]  # by operand
    name: str  # of the indices that it counts, such as r3j1


def loops_of(sizes: Sizes, strides: Mapping[str, Mapping[str, int]], indices: Iterable[str]) -> list[Loop]:
    """Return a loop for each index, from the strides of each operand."""
    return [Loop(sizes.bound(i), {name: of.get(i, 0) for name, of in strides.items()}, i) for i in indices]


def fused(loops: Iterable[Loop]) -> list[Loop]:
    """Merge neighbouring loops that all operands traverse with one common stride; outermost first."""
    result: list[Loop] = []
    for size, strides, name in loops:
        if size == 1:
            continue
        is_fixed = result and isinstance(size, int) and isinstance(result[-1].size, int)
        if is_fixed and all(result[-1].strides[of] == size * stride for of, stride in strides.items()):
            outer = result.pop()
            size, name = outer.size * size, outer.name + name
        result.append(Loop(size, strides, name))
    return result


def unrolled(places: Mapping[str, At], loops: Sequence[Loop]) -> Iterator[dict[str, At]]:
    """Yield the operands' places for every iteration of loops that are unrolled into instructions."""
    for index in itertools.product(*(range(loop.size) for loop in loops)):
        steps = list(zip(index, (loop.strides for loop in loops), strict=True))
        yield {name: place.offset_by(sum(n * s[name] for n, s in steps)) for name, place in places.items()}


def nests(
    sizes: Sizes,
    operands: Mapping[str, Stored],
    fixed: Sequence[str],
    indices: Sequence[str],
    most: int,
    *further: Loop,
    tokens_last: bool = True,
) -> Iterator[tuple[list[Level], dict[str, At]]]:
    """Yield the loops of each instruction, at most `most`, and its operands.

    `fixed`: indices that are unrolled into instructions.
    `indices`: indices of the loops, outermost first; those beyond `most` are unrolled, too.
    `tokens_last`: whether a loop over tokens is the innermost (the vector unit's order) or the outermost.
    """
    strides = {name: stored.strides(sizes) for name, stored in operands.items()}
    outer, inner = (loops_of(sizes, strides, of) for of in (fixed, indices))
    loops = sorted(fused([*inner, *further]), key=lambda loop: isinstance(loop.size, int) != tokens_last)
    cut = max(len(loops) - most, 0)
    levels = [Level(loop.name, loop.size) for loop in loops[cut:]]
    along = {name: {loop.name: loop.strides[name] for loop in loops[cut:]} for name in operands}
    places = {name: At(stored.place.memory, stored.place.base, along[name]) for name, stored in operands.items()}
    for operand in unrolled(places, [*outer, *loops[:cut]]):
        yield levels, operand


def _even(vectors: np.ndarray) -> int | None:
    """Return the stride between vectors, None if they are not evenly spaced."""
    steps = set(np.diff(vectors).tolist())
    return steps.pop() if len(steps) == 1 else (1 if not steps else None)


@dataclass(frozen=True)
class _Plan:
    """A shuffle: the permutation of a block, and the loops around it; all but one are unrolled into instructions."""

    permutation: np.ndarray
    vectors_in: int
    # Strides, in vectors, of the vectors in, and of the vectors out (within a row).
    read: int
    write: int
    rows: int  # rows of an operand buffer that a block fills; 0 if each block is one row, 1 if the target is in a bank
    loops: list[Loop]

    @property
    def block_steps(self) -> int:
        rows, vectors_in, vectors_out = max(self.rows, 1), self.vectors_in, len(self.permutation)
        row_in = vectors_in if vectors_in % rows else vectors_in // rows
        return rows * max(vectors_out // rows, row_in)

    @property
    def steps(self) -> int:
        return self.instructions * (max_of(self.repeated.size) + 1) * self.block_steps

    @property
    def instructions(self) -> int:
        return math.prod(loop.size for loop in self.unrolled)

    @property
    def repeated(self) -> Loop:
        """The loop over blocks in one instruction."""
        if not self.rows:
            return self.loops[0]
        if (tokens := next((loop for loop in self.loops if isinstance(loop.size, Register)), None)) is not None:
            return tokens
        return max(self.loops, key=lambda loop: max_of(loop.size), default=Loop(1, {"source": 0, "target": 0}, ""))

    @property
    def unrolled(self) -> list[Loop]:
        repeated = self.repeated
        return [loop for loop in self.loops if loop is not repeated]


def rearrange(builder: Builder, sizes: Sizes, source: Stored, target: Stored) -> None:
    """Shuffle a tensor from one arrangement into another, in a bank or in an operand buffer.

    Raise `ProgramError` if it needs blocks that are larger than the shuffle unit's buffer.
    """
    plan = _plan(sizes, source.arrangement, target.arrangement, target.rows)
    if plan is None:
        raise ProgramError(
            f"permuting {source.name} needs blocks of more than the shuffle unit's {M.SHUFFLE_VECTORS} vectors: "
            "contract neighbouring cores first"
        )
    what = f"{'load' if target.rows else 'permute'} {source.name}"
    count, strides, _ = plan.repeated
    along_in, along_out = {"block": strides["source"], "y": plan.read}, {"block": strides["target"], "y": plan.write}
    options = {}
    if target.rows:
        options["row"] = ("x" if plan.rows else "block", 0)
    if target.rows and plan.rows:
        options["out"] = plan.rows, len(plan.permutation) // plan.rows
        if not plan.vectors_in % plan.rows:
            along_in["x"] = plan.read * plan.vectors_in // plan.rows
    for at in unrolled({"source": source.place, "target": target.place}, plan.unrolled):
        into, out = at["source"]._replace(strides=along_in), at["target"]._replace(strides=along_out)
        result, buffered_result = (None, out) if target.rows else (out, None)
        builder.shuffle(what, count, plan.permutation, into, result, buffered_result, **options)


def rearranging_steps(sizes: Sizes, of: Arrangement, to: Arrangement, rows: str = "") -> float:
    """Return the steps of `rearrange`, infinity if it needs blocks that are larger than the shuffle unit's buffer."""
    plan = _plan(sizes, of, to, rows)
    return math.inf if plan is None else plan.steps


def _plan(sizes: Sizes, of: Arrangement, to: Arrangement, rows: str) -> _Plan | None:
    """Return the plan of a shuffle, of whole rows if they fit in a block; None if no block is large enough."""
    key = of, to, rows
    if key not in sizes.plans:
        sizes.plans[key] = _plan_of(sizes, of, to, rows) or _plan_of(sizes, *_narrow(sizes, of, to), rows)
    return sizes.plans[key]


def _narrow(sizes: Sizes, *arrangements: Arrangement) -> Iterator[Arrangement]:
    """Yield the view of each arrangement with the fewest indices along the lanes."""
    return (min(arrangement.views(sizes), key=lambda view: view.lanes) for arrangement in arrangements)


def _plan_of(sizes: Sizes, of: Arrangement, to: Arrangement, rows: str) -> _Plan | None:
    """Choose the indices of a block: those along the lanes before or after, and the others that minimize the steps."""
    strides = {"source": of.strides(sizes), "target": to.strides(sizes) | ({rows: 0} if rows else {})}
    rest, plans = [i for i in to.order if i not in of.packed and i not in to.packed], []
    for count in range(len(rest), -1, -1):
        inside = [i for i in to.order if i not in rest[:count]]
        if elements(sizes, inside) > M.SHUFFLE_VECTORS * LANES or sizes.bounds.keys() & set(inside):
            break
        in_block = sizes[rows] if rows in inside else int(not rows)
        block = _block(sizes, of, to, inside, max(in_block, 1))
        if block is not None:
            loops = loops_of(sizes, strides, rest[:count])
            plans.append(_Plan(*block, in_block, fused(loops) if in_block else [loops[0], *fused(loops[1:])]))
    return min(plans, key=lambda plan: plan.steps + INSTRUCTION_COST * plan.instructions, default=None)


def _block(sizes, of, to, inside, rows) -> _Block | None:
    """Return the block of the indices `inside`; None if it is too large."""
    strides_in, strides_out = (each.element_strides(sizes, inside) for each in (of, to))
    return _block_of(tuple(map(sizes.__getitem__, inside)), strides_in, strides_out, rows)


@lru_cache(BLOCKS)
def _block_of(
    shape: tuple[int, ...], strides_in: tuple[int, ...], strides_out: tuple[int, ...], rows: int
) -> _Block | None:
    """Return the block of an array's elements, from a cache: layers and flows of a model have the same ones.

    `strides_in`, `strides_out`: of each axis, before and after, in elements.
    """
    places_in, places_out = _places(shape, strides_in), _places(shape, strides_out)
    vectors_in, number_in = np.unique(places_in // LANES, return_inverse=True)
    vectors_out, number_out = np.unique(places_out // LANES, return_inverse=True)
    read, write = _even(vectors_in), _even(vectors_out[: len(vectors_out) // rows])
    if read is None or write is None or max(len(vectors_in), len(vectors_out)) > M.SHUFFLE_VECTORS:
        return None
    permutation = np.full((len(vectors_out), LANES), -1)
    permutation[number_out, places_out % LANES] = number_in * LANES + places_in % LANES
    permutation.flags.writeable = False
    return permutation, len(vectors_in), read, write


def _places(shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
    """Return the place of each element of an array, the last axis running fastest, from the strides of its axes."""
    places = np.zeros(1, np.int64)
    for size, stride in zip(shape, strides, strict=True):
        places = (places[:, None] + np.arange(size) * stride).reshape(-1)
    return places
