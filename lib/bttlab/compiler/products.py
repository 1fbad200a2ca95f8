"""Emit a product of two tensors with each of an engine's operations, for any arrangement of their indices.

C = A B sums over the indices k that A and B share; m are the other indices of A, n those of B.

    EXPAND      C[m, n] = sum of A[m, k] B[k, n]: k counts the rows of B in an operand buffer, n is along its vectors
    REDUCE      the same sum: n counts the rows of B in an operand buffer, k is along the vectors of both
    ACCUMULATE  the same sum: m is along the lanes of A, n along those of B, and the steps iterate over k

A pass of the engine takes up to ROWS rows. More rows, or indices for which an instruction has no loop left, take
several instructions.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from bttlab.compiler.arrangement import Arrangement, Sizes, Stored, elements, nests
from bttlab.compiler.builder import ROWS, Builder, padded, row_passes
from bttlab.compiler.errors import ProgramError
from bttlab.compiler.instruction import LEVELS, At, Level, max_of
from bttlab.compiler.machine import M


def expand(
    b: Builder,
    engine: int,
    what: str,
    sizes: Sizes,
    a: Stored,
    k: Sequence[str],
    in_buffer: Stored,
    c: Stored,
    addend: Stored | None = None,
    **more,
) -> None:
    """Emit C = addend + A B by EXPAND: the last index of `k` counts the rows of B, the others are passes.

    C goes to a bank, or to an operand buffer: then its outermost index counts the rows.
    """
    operands = {"scalars": a, "buffer": in_buffer, "result": c} | ({"addend": addend} if addend else {})
    vectors = c.arrangement.row_vectors(sizes), {name: int(name != "scalars") for name in operands}
    started: set[int] = set()
    block = in_buffer.arrangement.vectors(sizes) // sizes[k[-1]]
    for levels, at in nests(sizes, operands, k[:-1], c.arrangement.outer, LEVELS, vectors):
        result, levels = at["result"], levels or [Level("one", 1)]
        if c.rows and sizes[c.rows] == 1:  # the row level needs a loop, even for one row
            levels = [Level("row", 1), *levels]
        row = "t" if c.rows == "t" else levels[0].name
        before = result if result.base in started else at.get("addend")
        started.add(result.base)
        into = {"buffered_result": result, "row": (row, 0)} if c.rows else {"result": result}
        *passes, (last, count) = row_passes(sizes[k[-1]])
        if passes:  # each pass adds to the result of the one before
            strides = result.strides | ({row: c.arrangement.strides(sizes)[c.rows]} if c.rows else {})
            span = 1 + sum((max_of(loop.active_bound) - 1) * strides.get(loop.name, 0) for loop in levels)
            left = replace(b.allocate(f"{what}, a pass", span), strides=strides)
        for n, some in passes:
            own = at["buffer"].offset_by(n * block), at["scalars"].offset_by(n)
            b.expand(engine, what, levels, *own, left, addend=before, count=some)
            before = left
        own = at["buffer"].offset_by(last * block), at["scalars"].offset_by(last)
        b.expand(engine, what, levels, *own, addend=before, count=count, **into, **more)


def reduce(
    b: Builder, engine: int, what: str, sizes: Sizes, a: Stored, k: Sequence[str], in_buffer: Stored, c: Stored, flags=0
) -> None:
    """Emit C = A B by REDUCE.

    In the operand buffer the first index of B counts rows, the last are `k`, along the vectors of A and B, and those in
    between are passes.
    """
    order = in_buffer.arrangement.order
    fixed = order[1 : len(order) - len(k)]
    depth = Arrangement(tuple(k), in_buffer.arrangement.lanes).vectors(sizes)
    operands = {"buffer": in_buffer, "stream": a, "result": c}
    outer = [i for i in c.arrangement.order if i not in order]
    for levels, at in nests(sizes, operands, fixed, outer, LEVELS - 1):
        *loops, last = levels or [Level("m", 1)]
        # As few sums at once as SUM_DISTANCE allows without idle steps, so that readers of the result can start early.
        each = pieces_of(last.bound, 1) if isinstance(last.bound, int) else 0
        each = each if each <= M.ACCUMULATORS else 0
        parts = last.bound // each if each else 1
        if each and len(levels) < LEVELS - 1:  # one instruction with a loop over the parts
            loops, last = [*loops, Level("part", parts)], Level(last.name, each)
            at = {
                n: replace(one, strides=one.strides | {"part": each * one.strides.get(last.name, 0)})
                for n, one in at.items()
            }
        loops = [*loops, Level("w", depth + 1), padded(last.name, last.bound)]
        buffer, stream = (replace(at[name], strides=at[name].strides | {"w": 1}) for name in ("buffer", "stream"))
        block = in_buffer.arrangement.vectors(sizes) // sizes[in_buffer.rows]
        for n, count in row_passes(sizes[in_buffer.rows]):
            own = buffer.offset_by(n * block), stream, at["result"].offset_by(n)
            b.reduce(engine, what, loops, "w", *own, count=count, flags=flags)


def accumulate(
    b: Builder,
    engine: int,
    what: str,
    sizes: Sizes,
    a: Stored,
    m: Sequence[str],
    stream: Stored,
    c: Stored,
    allocate: Callable[[int], At],
    check: bool = False,
    **more,
) -> None:
    """Emit C = A B by ACCUMULATE: the lanes of A count the rows of C; the other indices of `m` are passes.

    The vectors of B become those of C. An accumulator may be updated again only after SUM_DISTANCE steps. Where C has
    fewer vectors than that, several steps of one summation loop get accumulators of their own; the vector unit adds
    these partial sums up.

    `allocate`: maps a number of vectors to a place for the partial sums.
    `check`: whether C is a gradient: it is written with CHECK.
    """
    k = [i for i in stream.arrangement.order if i in a.arrangement.order]
    rows = a.arrangement.packed
    vectors = c.arrangement.vectors(sizes) // elements(sizes, m)
    operands = {"scalars": a, "stream": stream, "result": c}
    step = c.strides(sizes)[rows[-1]]
    for levels, at in nests(sizes, operands, [i for i in m if i not in rows], k, LEVELS, tokens_last=False):
        loops = levels or [Level("k", 1)]
        if len(loops) >= LEVELS:
            raise ProgramError(f"{what}: it sums over {len(loops)} loops; an instruction has {LEVELS - 1} for a sum")
        summed, names = replace(at["stream"], strides=at["stream"].strides | {"w": 1}), [loop.name for loop in loops]
        result = replace(at["result"], strides={"r": step, "w": 1})
        place, pieces = _piece(loops, vectors)
        if pieces == 1 or "bias" in more:
            nest = [*loops, padded("w", vectors)]
            for n, count in row_passes(elements(sizes, rows)):
                own = at["scalars"].offset_by(n), summed, Level("r", count), result.at_step("r", ROWS * n)
                b.accumulate(engine, what, nest, names, *own, check=check, **more)
            continue
        name, bound, _ = loops.pop(place)
        if bound > pieces or not loops:
            loops.append(Level(name, bound // pieces))
        along = [{**one.strides, "p": one.strides.get(name, 0)} for one in (at["scalars"], summed)]
        for strides in along:
            one = strides.pop(name, 0)
            strides |= {name: pieces * one} if loops[-1].name == name else {}
        scalars, summed = (replace(one, strides=s) for one, s in zip((at["scalars"], summed), along, strict=True))
        nest = [*loops, padded("p", pieces, vectors), Level("w", vectors)]
        names = [loop.name for loop in loops]
        parts = replace(allocate(elements(sizes, rows) * pieces * vectors), strides={"r": pieces * vectors, "w": 1})
        own = replace(parts, strides={"p": vectors, "r": pieces * vectors, "w": 1})
        for n, count in row_passes(elements(sizes, rows)):
            some = scalars.offset_by(n), summed, Level("r", count), parts.at_step("r", ROWS * n)
            b.accumulate(engine, what, nest, names, *some, **more)
            sums = [Level("p", pieces), padded("r", count, vectors), Level("w", vectors)]
            b.columns(what, sums, own.at_step("r", ROWS * n), r1=result.at_step("r", ROWS * n), check=check)


def _piece(loops: Sequence[Level], vectors: int) -> tuple[int, int]:
    """Choose the summation loop of an ACCUMULATE to split into partial sums; return its place, and their number."""
    choices = []
    for place, (_, bound, _) in enumerate(loops):
        if vectors < M.SUM_DISTANCE and isinstance(bound, int):
            pieces = pieces_of(bound, vectors)
            kept = len(loops) - (pieces == bound and len(loops) > 1)
            if kept <= LEVELS - 2 and pieces * vectors <= M.ACCUMULATORS:
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
