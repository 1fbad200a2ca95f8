"""Emit a product of two tensors with each of an engine's operations, for any arrangement of their indices.

C = A B sums over the indices k that A and B share; m are the other indices of A, n those of B.

    EXPAND      C[m, n] = sum of A[m, k] B[k, n]: k counts the rows of B in an operand buffer, n is along its vectors
    REDUCE      the same sum: n counts the rows of B in an operand buffer, k is along the vectors of both
    ACCUMULATE  the same sum: m is along the lanes of A, n along those of B, and the steps iterate over k

A pass of the engine takes up to ROWS rows. More rows, or indices for which an instruction has no loop left, take
several instructions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bttlab.compiler.builder import ROWS, Builder, padded, row_passes
from bttlab.compiler.instruction import At, Level, max_of
from bttlab.compiler.machine import M
from bttlab.compiler.plan.arrangement import Arrangement, Loop, Sizes, Stored, elements, nests


@dataclass(frozen=True)
class EngineProduct:
    """C = addend + A B by an operation of an engine.

    `contracted`: the indices k; for ACCUMULATE, m.
    `right`: B, in the operand buffer, or in a bank for ACCUMULATE.
    `c`: in a bank, or for EXPAND in an operand buffer: then its outermost index counts the rows.
    `addend`: of EXPAND.
    `flags`: of the instructions that write C.
    `bias`: place of one more row of ACCUMULATE, the gradient of the bias.
    """

    builder: Builder
    engine: int
    operation: int
    what: str
    sizes: Sizes
    a: Stored
    contracted: Sequence[str]
    right: Stored
    c: Stored
    addend: Stored | None = None
    flags: int = 0
    bias: At | None = None

    def emit(self) -> None:
        {M.EXPAND: _expand, M.REDUCE: _reduce, M.ACCUMULATE: _accumulate}[self.operation](self)


def _expand(p: EngineProduct) -> None:
    """Emit EXPAND: the last index of k counts the rows of B, the others are passes."""
    b, c, right, k, sizes = p.builder, p.c, p.right, p.contracted, p.sizes
    operands = {"scalars": p.a, "buffer": right, "result": c} | ({"addend": p.addend} if p.addend else {})
    vectors = Loop(c.arrangement.row_vectors(sizes), {name: int(name != "scalars") for name in operands}, "w")
    started: set[int] = set()
    block = right.arrangement.vectors(sizes) // sizes[k[-1]]
    for levels, at in nests(sizes, operands, k[:-1], c.arrangement.outer, M.LEVELS, vectors):
        result, levels = at["result"], levels or [Level("one", 1)]
        if c.rows and sizes[c.rows] == 1:  # the row level needs a loop, even for one row
            levels = [Level("row", 1), *levels]
        row = "t" if c.rows == "t" else levels[0].name
        before = result if result.base in started else at.get("addend")
        started.add(result.base)
        into = {"buffered_result": result, "row": (row, 0)} if c.rows else {"result": result}
        *passes, (last, last_count) = row_passes(sizes[k[-1]])
        if passes:  # each pass adds to the result of the one before
            strides = result.strides | ({row: c.arrangement.strides(sizes)[c.rows]} if c.rows else {})
            span = 1 + sum((max_of(loop.active_bound) - 1) * strides.get(loop.name, 0) for loop in levels)
            left = b.allocate(f"{p.what}, a pass", span)._replace(strides=strides)
        for n, count in passes:
            places = at["buffer"].offset_by(n * block), at["scalars"].offset_by(n)
            b.expand(p.engine, p.what, levels, *places, left, addend=before, count=count)
            before = left
        places = at["buffer"].offset_by(last * block), at["scalars"].offset_by(last)
        b.expand(p.engine, p.what, levels, *places, addend=before, count=last_count, flags=p.flags, **into)


def _reduce(p: EngineProduct) -> None:
    """Emit REDUCE.

    In the operand buffer the first index of B counts rows, the last are k, along the vectors of A and B, and those in
    between are passes.
    """
    right, sizes, order = p.right, p.sizes, p.right.arrangement.order
    fixed = order[1 : len(order) - len(p.contracted)]
    depth = Arrangement(tuple(p.contracted), right.arrangement.lanes).vectors(sizes)
    operands = {"buffer": right, "stream": p.a, "result": p.c}
    outer = [i for i in p.c.arrangement.order if i not in order]
    for levels, at in nests(sizes, operands, fixed, outer, M.LEVELS - 1):
        *loops, last = levels or [Level("m", 1)]
        # As few sums at once as SUM_DISTANCE allows without idle steps, so that readers of the result can start early.
        each = pieces_of(last.bound, 1) if isinstance(last.bound, int) else 0
        each = each if each <= M.ACCUMULATORS else 0
        parts = last.bound // each if each else 1
        if each and len(levels) < M.LEVELS - 1:  # one instruction with a loop over the parts
            loops, last = [*loops, Level("part", parts)], Level(last.name, each)
            at = {
                name: place.part(**place.strides, part=each * place.strides.get(last.name, 0))
                for name, place in at.items()
            }
        loops = [*loops, Level("w", depth + 1), padded(last.name, last.bound)]
        buffer, stream = (at[name].part(**at[name].strides, w=1) for name in ("buffer", "stream"))
        block = right.arrangement.vectors(sizes) // sizes[right.rows]
        for n, count in row_passes(sizes[right.rows]):
            places = buffer.offset_by(n * block), stream, at["result"].offset_by(n)
            p.builder.reduce(p.engine, p.what, loops, "w", *places, count=count, flags=p.flags)


def _accumulate(p: EngineProduct) -> None:
    """Emit ACCUMULATE: the lanes of A count the rows of C; the other indices of m are passes.

    The vectors of B become those of C. An accumulator may be updated again only after SUM_DISTANCE steps. Where C has
    fewer vectors than that, several steps of one summation loop get accumulators of their own; the vector unit adds
    these partial sums up.
    """
    b, sizes, check = p.builder, p.sizes, bool(p.flags & M.CHECK)
    rows = p.a.arrangement.packed
    vectors = p.c.arrangement.vectors(sizes) // elements(sizes, p.contracted)
    passes = row_passes(elements(sizes, rows))
    step = p.c.strides(sizes)[rows[-1]]
    operands = {"scalars": p.a, "stream": p.right, "result": p.c}
    fixed = [i for i in p.contracted if i not in rows]
    for levels, at in nests(
        sizes, operands, fixed, summed_indices(p.a.arrangement, p.right.arrangement), M.LEVELS, tokens_last=False
    ):
        loops = [*levels] or [Level("k", 1)]
        scalars, summed = at["scalars"], at["stream"].part(**at["stream"].strides, w=1)
        names = [loop.name for loop in loops]
        result = at["result"].part(r=step, w=1)
        place, pieces = _piece(loops, vectors)
        if pieces == 1 or p.bias is not None:
            nest = [*loops, padded("w", vectors)]
            for n, count in passes:
                places = scalars.offset_by(n), summed, Level("r", count), result.at_step("r", ROWS * n)
                b.accumulate(p.engine, p.what, nest, names, *places, check=check, bias=p.bias)
            continue
        name, bound, _ = loops.pop(place)
        if bound > pieces or not loops:
            loops.append(Level(name, bound // pieces))
        scalars, summed = (_divided(of, name, pieces, loops[-1].name == name) for of in (scalars, summed))
        nest = [*loops, padded("p", pieces, vectors), Level("w", vectors)]
        names = [loop.name for loop in loops]
        name, size = f"{p.c.name}, in parts", elements(sizes, rows) * pieces * vectors
        parts = b.allocate(name, size).part(p=vectors, r=pieces * vectors, w=1)
        into = parts.part(r=pieces * vectors, w=1)
        for n, count in passes:
            places = scalars.offset_by(n), summed, Level("r", count), into.at_step("r", ROWS * n)
            b.accumulate(p.engine, p.what, nest, names, *places)
            sums = [Level("p", pieces), padded("r", count, vectors), Level("w", vectors)]
            b.columns(p.what, sums, parts.at_step("r", ROWS * n), r1=result.at_step("r", ROWS * n), check=check)


def _divided(operand: At, loop: str, pieces: int, is_left: bool) -> At:
    """Return an operand whose loop is divided into a loop p over `pieces` and, if any are left, one over the rest."""
    strides = {**operand.strides, "p": operand.strides.get(loop, 0)}
    stride = strides.pop(loop, 0)
    return operand.part(**strides, **({loop: pieces * stride} if is_left else {}))


def summed_indices(scalars: Arrangement, stream: Arrangement) -> list[str]:
    """Return the indices that ACCUMULATE sums over: loops of its instructions, outermost first."""
    return [i for i in stream.order if i in scalars.order]


def _piece(loops: Sequence[Level], vectors: int) -> tuple[int, int]:
    """Choose the summation loop of an ACCUMULATE to split into partial sums; return its place, and their number."""
    choices = []
    for place, (_, bound, _) in enumerate(loops):
        if vectors < M.SUM_DISTANCE and isinstance(bound, int):
            pieces = pieces_of(bound, vectors)
            kept = len(loops) - (pieces == bound and len(loops) > 1)
            if kept <= M.LEVELS - 2 and pieces * vectors <= M.ACCUMULATORS:
                choices.append((max(pieces * vectors, M.SUM_DISTANCE) / pieces, pieces, place))
    _, pieces, place = min(choices, default=(0, 1, 0))
    return place, pieces


def pieces_of(bound: int, vectors: int) -> int:
    """Return the smallest divisor of a loop's bound that, times `vectors`, is SUM_DISTANCE or more; else the bound."""
    return next((n for n in range(1, bound) if not bound % n and n * vectors >= M.SUM_DISTANCE), bound)


def expand_steps(sizes: Sizes, k: Sequence[str], c: Arrangement) -> int:
    return elements(sizes, k[:-1]) * len(row_passes(sizes[k[-1]])) * c.vectors(sizes)


def reduce_steps(sizes: Sizes, m: Sequence[str], in_buffer: Arrangement, fixed: Sequence[str]) -> int:
    sums = max(elements(sizes, m), M.SUM_DISTANCE)
    depth = in_buffer.vectors(sizes) // elements(sizes, (in_buffer.order[0], *fixed))
    return sums * (depth + 1) * elements(sizes, fixed) * len(row_passes(sizes[in_buffer.order[0]]))


def accumulate_steps(sizes: Sizes, k: Sequence[str], runs: int, vectors: int, rows: int) -> int:
    """Return the steps of `accumulate` and of the drains after it."""
    depth = elements(sizes, k)
    pieces = 1 if vectors >= M.SUM_DISTANCE else pieces_of(elements(sizes, [i for i in k if i != "t"]), vectors)
    runs *= len(row_passes(rows))
    return runs * (depth * max(pieces * vectors, M.SUM_DISTANCE) // pieces + min(rows, ROWS) * vectors * pieces)
