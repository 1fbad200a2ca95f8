"""Rows in front of the tokens, and columns of matrices beside each other: slices, heads in another order, joined ones.

Whole vectors are copied by the vector unit, other elements are moved by the shuffle unit. The backward pass moves the
gradient the other way and adds up what was read several times.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bttlab.compiler.builder import padded
from bttlab.compiler.errors import ProgramError
from bttlab.compiler.instruction import At, Level, Memory, max_of
from bttlab.compiler.machine import M
from bttlab.compiler.operation import NEVER, Context, Matrix, Operation, Shapes, Values, rows_of
from bttlab.util.renamed import renamed

if not TYPE_CHECKING:
    __getattr__ = renamed(__name__, {"Columns": "GatherColumns", "Prepend": "PrependRows"})

LANES = M.LANES
Run = tuple[int, int, int]  # first vector of the result and of the source, and how many


@dataclass
class Term:
    """What a result has from a source: for each of its lanes (vectors, LANES) the source's lane, or -1."""

    source: int  # number of the matrix
    lanes: np.ndarray

    def back(self, vectors: int) -> "Term":
        """Return the term of the source's gradient, of `vectors` vectors, from the gradient of the result."""
        lanes = np.full(vectors * LANES, -1)
        lanes[self.lanes[self.lanes >= 0]] = np.flatnonzero(self.lanes.reshape(-1) >= 0)
        return Term(0, lanes.reshape(vectors, LANES))

    @property
    def is_whole(self) -> np.ndarray:
        """Which vectors of the result are whole vectors of the source."""
        first = self.lanes[:, :1]
        return ((first % LANES == 0) & (self.lanes == first + np.arange(LANES))).all(1)


@dataclass(eq=False)
class GatherColumns(Operation):
    """Columns of the inputs beside each other.

    `columns`: for each column of the output its column of the inputs, counted from the first one of the first input on.
    """

    kind, keep, keeps_zeros, reads_inputs = "columns", NEVER, True, False

    columns: tuple[int, ...]

    def torch(self, values: Values, *inputs: Any) -> Any:
        import torch

        return torch.cat(inputs, 1)[:, list(self.columns)]

    @property
    def terms(self) -> list[Term]:
        """What is moved: each element once in a term. Lanes behind the last column of a matrix are 0, and are moved."""
        y, starts = self.output, np.cumsum([0, *(x.features for x in self.inputs)])
        lanes = np.full((2, y.vectors * LANES), -1)  # number and lane of the input
        for n, (x, start) in enumerate(zip(self.inputs, starts, strict=False)):
            columns = np.array(self.columns) - start
            of_x = np.flatnonzero((columns >= 0) & (columns < x.features))
            lanes[0, of_x], lanes[1, of_x] = n, columns[of_x]
        for v in range(0, y.vectors * LANES, LANES):  # a last vector, with its zeros
            (numbers, where), used = lanes[:, v : v + LANES], lanes[0, v : v + LANES] >= 0
            x, first = self.inputs[numbers[0]], where[0]
            is_last = len(set(numbers[used])) == 1 and first % LANES == 0 and x.features - first == used.sum()
            if is_last and (where[used] == first + np.arange(used.sum())).all():
                lanes[0, v : v + LANES], lanes[1, v : v + LANES] = numbers[0], first + np.arange(LANES)
        copies: dict[tuple[int, int], np.ndarray] = defaultdict(lambda: np.full(y.vectors * LANES, -1))
        seen: dict[tuple[int, int], int] = defaultdict(int)
        for place, (n, lane) in enumerate(lanes.T.tolist()):
            if n >= 0:
                copies[n, seen[n, lane]][place] = lane
                seen[n, lane] += 1
        return [Term(n, its_lanes.reshape(-1, LANES)) for (n, _), its_lanes in copies.items()]

    @property
    def copies(self) -> int:
        """How often an element is moved by the shuffle unit."""
        return sum(not term.is_whole[(term.lanes >= 0).any(1)].all() for term in self.terms)

    def emit(self, context: Context, result: At, *places: At) -> None:
        move(context, self.terms, places, self.inputs, self.output, result)

    def backward(self, context: Context, d: At) -> None:
        for n, x in enumerate(self.inputs):
            if context.is_needed(x):
                terms = [term.back(x.vectors) for term in self.terms if term.source == n]

                def produce(addend: At | None, d_x: At, x: Matrix = x, terms: list[Term] = terms) -> None:
                    move(context, terms, [d], [self.output], x, d_x, addend)

                context.add_to_gradient(x, produce, d)


@dataclass(eq=False)
class PrependRows(Operation):
    """Rows of a parameter or of a constant, from row `first` on, and then x."""

    kind, keep, has_prefix, keeps_zeros, reads_inputs = "prepend", NEVER, False, True, False

    table: str
    first: int = 0

    @property
    def rows(self) -> int:
        return max_of(self.output.tokens) - max_of(self.inputs[0].tokens)

    def torch(self, values: Values, x: Any) -> Any:
        import torch

        return torch.cat([values.rows(self.table, x.shape[1])[self.first : self.first + self.rows], x])

    def parameters(self, shapes: Shapes) -> list[str]:
        return [self.table] if self.table in shapes else []  # else it is a constant

    def rows_read(self) -> tuple[int, int]:
        return self.first, self.first + self.rows

    def allocate(self, context: Context) -> None:
        self.block = context.layout.place(self.table, added=True)
        self.in_block = (self.first - self.block.first) * self.output.vectors

    def emit(self, context: Context, result: At, x: At) -> None:
        matrix, vectors = self.inputs[0], self.output.vectors
        rows = rows_of(matrix, self.block.where().part(self.in_block))
        context.builder.vector(M.COPY, "rows in front", self._loops, rows, r0=rows_of(matrix, result))
        context.emit_rows(M.COPY, "tokens", matrix, result.part(self.rows * vectors), x)

    @property
    def _loops(self) -> list[Level]:
        return [Level("w", self.output.vectors), padded("t", self.rows)]

    def backward(self, context: Context, d: At) -> None:
        matrix, vectors = self.inputs[0], self.output.vectors
        if context.is_trained(self.table):
            gradient = rows_of(matrix, self.block.gradient().part(self.in_block))
            context.builder.vector(M.COPY, "gradient", self._loops, rows_of(matrix, d), r0=gradient, flags=M.CHECK)
        context.pass_gradient(matrix, d.part(self.rows * vectors))


def move(
    context: Context,
    terms: Sequence[Term],
    places: Sequence[At],
    sources: Sequence[Matrix],
    y: Matrix,
    result: At,
    addend: At | None = None,
) -> None:
    """Emit result = addend + the sum of the terms."""
    count = sum((term.lanes >= 0).any(1).astype(int) for term in terms)
    passes: list[
        dict[tuple[Memory, int, int], list[Run]]
    ] = []  # runs by their source; the first pass writes, others add
    heights = [0] * y.vectors

    def add(place: At, vectors: int, pairs: Sequence[tuple[int, int]]) -> None:
        for v, source in pairs:
            while len(passes) <= heights[v]:
                passes.append(defaultdict(list))
            passes[heights[v]][place.memory, place.base, vectors].append((v, source, 1))
            heights[v] += 1

    shuffled = set()
    for term in terms:
        place, matrix = places[term.source], sources[term.source]
        is_whole, others = term.is_whole, count - (term.lanes >= 0).any(1)
        for outs in _shuffled_ranges(term, is_whole):
            is_whole[outs.start : outs.stop] = False
            is_direct = addend is None and not others[outs.start : outs.stop].any()
            into = result if is_direct else context.new(y, "moved columns")
            _shuffle(context, term, outs, place, matrix, y, into)
            shuffled |= set(outs) if is_direct else set()
            if not is_direct:
                add(into, y.vectors, [(v, v) for v in outs])
        add(place, matrix.vectors, [(v, int(term.lanes[v, 0]) // LANES) for v in np.flatnonzero(is_whole)])
    loops = lambda n, w: [Level("n", n), Level("w", w), Level("t", y.tokens)]  # noqa: E731
    for number, by_source in enumerate(passes):
        for (memory, base, vectors), runs in by_source.items():
            for (v, source, w), n, (step, source_step) in _progressions(_joined(runs)):
                of_y = {"n": step, "w": 1, "t": y.vectors}
                a, r0 = At(memory, base + source, {"n": source_step, "w": 1, "t": vectors}), result.part(v, **of_y)
                b = r0 if number else addend and addend.part(v, **of_y)
                context.builder.vector(M.ADD if b else M.COPY, "columns", loops(n, w), a, b, r0=r0)
    for v, _, w in _joined([(v, v, 1) for v in range(y.vectors) if not heights[v] and v not in shuffled]):
        before, r0 = (where and where.part(v, w=1, t=y.vectors) for where in (addend, result))
        if before != r0:
            context.builder.vector(M.COPY, "other columns", loops(1, w), before, r0=r0)


def _shuffled_ranges(term: Term, is_whole: np.ndarray) -> list[range]:
    """Return ranges of vectors of the result that have elements of the same vectors of the source."""
    ranges: list[tuple[range, set[int]]] = []
    for v in np.flatnonzero((term.lanes >= 0).any(1) & ~is_whole).tolist():
        outs, ins = range(v, v + 1), set((term.lanes[v][term.lanes[v] >= 0] // LANES).tolist())
        while ranges and any(ins & earlier for _, earlier in ranges):  # with all between, which the unit writes, too
            last, earlier = ranges.pop()
            outs, ins = range(last.start, outs.stop), ins | earlier
        ranges.append((outs, ins))
    return [outs for outs, _ in ranges]


def _shuffle(context: Context, term: Term, outs: range, place: At, x: Matrix, y: Matrix, result: At) -> None:
    lanes = term.lanes[outs.start : outs.stop]
    first = int(lanes[lanes >= 0].min()) // LANES
    if max(len(outs), int(lanes.max()) // LANES - first + 1) > M.SHUFFLE_VECTORS:
        rule = f"at most {M.SHUFFLE_VECTORS * LANES} features with parts that do not begin at a multiple of {LANES}"
        raise ProgramError(f"{context.builder.layer} moves columns of {y.features} features: the card takes {rule}")
    permutation = np.where(lanes >= 0, lanes - first * LANES, -1)
    source, into = place.part(first, block=x.vectors, y=1), result.part(outs.start, block=y.vectors, y=1)
    context.builder.shuffle("columns", y.tokens, permutation, source, into)


def _joined(runs: Sequence[Run]) -> list[Run]:
    joined: list[Run] = []
    for v, source, count in sorted(runs):
        if joined and (joined[-1][0] + joined[-1][2], joined[-1][1] + joined[-1][2]) == (v, source):
            joined[-1] = (*joined[-1][:2], joined[-1][2] + count)
        else:
            joined.append((v, source, count))
    return joined


def _progressions(runs: list[Run]) -> Iterator[tuple[Run, int, tuple[int, int]]]:
    """Yield runs that are one instruction: the first, how many, and the steps of result and source between them."""
    left = list(runs)
    while left:
        v, source, w = left[0]
        best, steps = 1, (0, 0)
        for step, source_step in ((b[0] - v, b[1] - source) for b in left[1:] if b[2] == w):
            n = 1
            while (v + n * step, source + n * source_step, w) in left:
                n += 1
            if n > best:
                best, steps = n, (step, source_step)
        taken = [(v + n * steps[0], source + n * steps[1], w) for n in range(best)]
        left = [run for run in left if run not in taken]
        yield (v, source, w), best, steps
