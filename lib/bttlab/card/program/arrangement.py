"""How a tensor's elements lie in words, and the shuffles from one arrangement to another or into a held memory."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bttlab.card.machine import machine
from bttlab.card.program.builder import LANES, Builder, words_for
from bttlab.card.program.errors import ProgramError
from bttlab.card.program.instruction import At

M = machine()
Sizes = Mapping[str, int]
BLOCK_WORDS = 48  # of a shuffle's block, where there is a choice: entries of its tables are few


@dataclass(frozen=True)
class Arrangement:
    """Indices from the outermost on; the last `lanes` of them are packed along the lanes, each row from a word on.

    Attributes
    ----------
    order : tuple of str
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

    def row_words(self, sizes: Sizes) -> int:
        """Words of a row."""
        return words_for(self.row_elements(sizes))

    def words(self, sizes: Sizes) -> int:
        """Words of the tensor."""
        return math.prod(sizes[i] for i in self.outer) * self.row_words(sizes)

    def strides(self, sizes: Sizes) -> dict[str, int]:
        """Words from an index of a row to the next."""
        strides, step = {}, self.row_words(sizes)
        for index in reversed(self.outer):
            strides[index] = step
            step *= sizes[index]
        return strides

    def views(self, sizes: Sizes) -> Iterator["Arrangement"]:
        """Yield the arrangements that are the same words: rows that fill whole words may be cut or put together."""
        whole = [n for n in range(1, len(self.order) + 1) if not math.prod(sizes[i] for i in self.order[-n:]) % LANES]
        yield self
        if self.lanes in whole:
            yield from (Arrangement(self.order, n) for n in whole if n != self.lanes)

    def places(self, sizes: Sizes, indices: Sequence[str]) -> np.ndarray:
        """Return element numbers (word x LANES + lane) over some indices, the others 0, of the shape of their sizes."""
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
    """Return loops, outermost first, those of them put together that go through all operands in even steps.

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
    """Yield where each operand lies at every turn of loops that are not the instruction's own."""
    for turn in itertools.product(*(range(size) for size, _ in loops)):
        yield {name: sum(n * s[name] for n, (_, s) in zip(turn, loops, strict=True)) for name in names}


def _even(words: np.ndarray) -> int | None:
    """Return the step between words, None if they are not evenly spaced."""
    steps = set(np.diff(words).tolist())
    return steps.pop() if len(steps) == 1 else (1 if not steps else None)


@dataclass(frozen=True)
class _Plan:
    """A shuffle: what happens in a block, over what it repeats, and over what there are instructions of their own."""

    permutation: np.ndarray
    words_in: int
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
    block = max(plan.words_in, len(plan.permutation)) + M.SHUFFLE_GAP
    return math.prod(size for size, _ in plan.loops) // count * (count + 1) * block


def hold(
    builder: Builder, what: str, sizes: Sizes, source: At, of: Arrangement, rows: str, held: At, words: Arrangement
) -> None:
    """Copy a tensor into a held memory: an index counts rows, the others lie in each row's words.

    Parameters
    ----------
    source : At
    of : Arrangement
    rows : str
        The index that counts rows, of size up to ROWS.
    held : At
    words : Arrangement
        Of the other indices.

    Raises
    ------
    ProgramError
        If a block of it is larger than the shuffle unit's.
    """
    count = sizes[rows]
    outside: list[str] = []
    while True:  # as much in a block as there is room for; the rest in blocks of its own
        inside = [i for i in words.order if i not in outside]
        part = Arrangement((rows, *inside), min(words.lanes, len(inside)))
        block = _block(sizes, of, part, (rows, *inside))
        if block is not None and (len(block[0]) <= BLOCK_WORDS or rows in of.packed) and block[3] == 1:
            break
        free = [i for i in inside if i not in words.packed and i not in of.packed]
        if not free:
            break
        outside.append(free[0])
    step = _even(np.unique(words.places(sizes, inside).reshape(-1) // LANES))
    strides = of.strides(sizes), words.strides(sizes)
    loops = fused((sizes[i], {"source": strides[0][i], "target": strides[1][i]}) for i in words.order if i in outside)
    if block is not None and step is not None and (rows in of.packed or not loops):
        permutation, words_in, read, _ = block
        split = words_in % count == 0
        along = {"x": read * words_in // count, "y": read} if split else {"y": read}
        blocks, stride = max(loops, key=lambda loop: loop[0], default=(1, {"source": 0, "target": 0}))
        for first in offsets([loop for loop in loops if loop[1] is not stride], ("source", "target")):
            builder.shuffle(
                what,
                blocks,
                permutation,
                At(source.memory, source.base + first["source"], along | {"block": stride["source"]}),
                also=At(held.memory, held.base + first["target"], {"y": step, "block": stride["target"]}),
                row=("x", 0),
                out=(count, len(permutation) // count),
            )
        return
    if rows in of.packed:
        raise ProgramError(_too_large(what))
    plan = _plan(what, sizes, of, words)
    for first in offsets(plan.loops, ("source", "target")):
        builder.shuffle(
            what,
            count,
            plan.permutation,
            At(source.memory, source.base + first["source"], {"block": strides[0][rows], "y": plan.read}),
            also=At(held.memory, held.base + first["target"], {"y": plan.write}),
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
        if block is not None and (best is None or max(len(block[0]), block[1]) <= BLOCK_WORDS):
            best, chosen = block, inside
        if not rest or math.prod(sizes[i] for i in inside) > M.SHUFFLE_WORDS * LANES:
            break
        rest.pop()
    if best is None:
        raise ProgramError(_too_large(what))
    permutation, words_in, read, write = best
    strides = of.strides(sizes), to.strides(sizes)
    outside = [i for i in to.order if i not in chosen]
    loops = fused((sizes[i], {"source": strides[0][i], "target": strides[1][i]}) for i in outside)
    return _Plan(permutation, words_in, read, write, loops)


def _too_large(what: str) -> str:
    return (
        f"{what}: its elements are further apart than a block of the shuffle unit, {M.SHUFFLE_WORDS} words: contract "
        "neighbouring cores first"
    )


def _block(sizes, of, to, inside) -> tuple[np.ndarray, int, int, int] | None:
    """Return the permutation of some indices' elements, the words in, and the steps between words in and out."""
    if math.prod(sizes[i] for i in inside) > M.SHUFFLE_WORDS * LANES:
        return None
    places_in, places_out = (a.places(sizes, inside).reshape(-1) for a in (of, to))
    words_in, number_in = np.unique(places_in // LANES, return_inverse=True)
    words_out, number_out = np.unique(places_out // LANES, return_inverse=True)
    read, write = _even(words_in), _even(words_out)
    if read is None or write is None or max(len(words_in), len(words_out)) > M.SHUFFLE_WORDS:
        return None
    permutation = np.full((len(words_out), LANES), -1)
    permutation[number_out, places_out % LANES] = number_in * LANES + places_in % LANES
    return permutation, len(words_in), read, write
