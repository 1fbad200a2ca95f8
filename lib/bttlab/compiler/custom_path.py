"""The program of one linear layer in a custom contraction path (`bttlab.tensor.Order`).

Each product is lowered by itself: of the ways in which an engine can do it (`products`), with the operands as they lie
or re-ordered by the shuffle unit, the one that takes the fewest steps, those of re-ordering what it leaves included. A
model's own layers (`linear`) know how many cores of each end are merged. Buffers get banks as all others do (`banks`).
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from bttlab.compiler.arrangement import Arrangement, Stored, elements, rearrange, rearranging_steps
from bttlab.compiler.banks import assign_banks, inner_banks, with_copies
from bttlab.compiler.builder import LANES, ROWS, Builder, padded, vectors_for
from bttlab.compiler.errors import DoesNotFit, ProgramError
from bttlab.compiler.instruction import Level
from bttlab.compiler.layer import CORES, NAME, LayerProgram, LayerShape, Transfer, assemble, check_tokens
from bttlab.compiler.layout import IN_AXES, OUT_AXES, Block
from bttlab.compiler.machine import machine
from bttlab.compiler.operands import part
from bttlab.compiler.products import accumulate, accumulate_steps, expand, expand_steps, reduce, reduce_steps
from bttlab.tensor.order import Order, Product

M = machine()
PERMUTE_CYCLES = M.LATENCY  # cycles that a re-ordering costs beside its steps: what comes next waits for its results
MOST_PASSES = 16
SMALLER = "fewer tokens or smaller ranks, or an order whose intermediates are smaller"
FEATURES = {"x": ("t", "j1", "j2", "j3"), "y": ("t", "i1", "i2", "i3")}
# The axes of the cores, as a model's layers have them.
AXES = dict(zip(CORES, (*list(OUT_AXES.values())[::-1], *IN_AXES.values()), strict=True))


@dataclass
class Tensor:
    """A tensor of the network: its indices, its copies in banks and those in operand buffers."""

    name: str
    indices: frozenset[str]
    stored: list[Stored] = field(default_factory=list)
    held: dict[tuple[int, Arrangement], Stored] = field(default_factory=dict)

    @property
    def arrangements(self) -> list[Arrangement]:
        """Those of its copies in banks."""
        return [stored.arrangement for stored in self.stored]

    @property
    def has_tokens(self) -> bool:
        """True if its size depends on the tokens."""
        return "t" in self.indices


class _Way(NamedTuple):
    """A way to do a product: one of `products`, the engine, its steps, what it waits for, and the operands.

    B is loaded into the operand buffer unless the engine accumulates; `along` are the indices that the function takes.
    """

    function: Callable
    engine: int
    steps: float
    waits: float
    a: tuple[Tensor, Arrangement]
    b: tuple[Tensor, Arrangement]
    along: Sequence[str]
    result: Arrangement


class CustomPath:
    """Compiles an order.

    Attributes
    ----------
    sizes : dict of str to int
        Of all indices. A rank above ROWS has two, "r3 pass" and "r3", whose sizes multiply to it.
    indices : dict of str to tuple of str
        Of all tensors and gradients.
    """

    def __init__(self, shape: LayerShape, tokens: int, order: Order):
        self.b, self.shape, self.tokens, self.order = Builder(), shape, tokens, order
        self.sizes = order.sizes(tokens, shape.out_modes, shape.in_modes, shape.ranks)
        self.backward = order.passes(self.sizes)[1]
        self.load = [0.0, 0.0]  # steps of each engine
        self.tensors: dict[str, Tensor] = {}
        self.parts = {index: (index,) for index in self.sizes}
        for rank, size in zip([f"r{k}" for k in range(1, len(CORES))], shape.ranks, strict=True):
            if size > ROWS:
                self.parts[rank] = f"{rank} pass", rank
                self.sizes |= dict(zip(self.parts[rank], _even_passes(size), strict=True))
        self.indices = {name: tuple(p for i in of for p in self.parts[i]) for name, of in order.indices().items()}
        self.indices |= {f"d{name}": of for name, of in self.indices.items()}
        self.sizes["feature"] = shape.out_features
        self.bias, self.d_bias = (self._room(name, Arrangement(("feature",), 1)) for name in ("bias", "d bias"))

    # ---- the whole program ---------------------------------------------------------------------------------------

    def program(self) -> LayerProgram:
        """Return the program."""
        b, steps = self.b, self.order.steps
        products = [*steps, *self.backward]
        for step in steps:
            self._check(step)
        # Of each tensor: the indices that should lie along its vectors for its next use.
        self.wanted: dict[str, frozenset[str]] = {}
        for number, (_, left, right) in enumerate(products):
            shared = self._set(left) & self._set(right)
            for one in (left, right):
                is_buffered = number < len(steps) and "t" not in self.indices[one]
                by_rows = is_buffered and elements(self.sizes, shared) <= ROWS
                self.wanted.setdefault(one, self._set(one) - shared if by_rows or "t" in shared else shared)
        inputs, outputs = self._inputs(), {}
        for number, product in enumerate(products):
            b.stage, b.layer = ("FP" if number < len(steps) else "BP"), NAME
            self._product(product)
            result = product[0]
            if result in ("y", "dx"):
                outputs[result] = self._features(result)
            elif result[1:] in CORES and result[0] == "d":
                outputs[result] = self.tensors[result].stored[0]
        inputs["b"], outputs["db"] = self.bias, self.d_bias
        width = vectors_for(self.shape.out_features)
        dy, db = part(inputs["dy"].place, t=width, w=1), part(self.d_bias.place, w=1)
        b.columns("db", [Level("t", self.tokens), padded("w", width)], dy, r1=db)
        inputs, outputs = ([self._transfer(name, one) for name, one in of.items()] for of in (inputs, outputs))
        b.instructions = with_copies(b, b.instructions)
        moved = {transfer.block.buffer.name for transfer in (*inputs, *outputs)}
        assign_banks(b.made, b.instructions, self.tokens, moved)
        return assemble(b, self.shape, self.tokens, inputs, outputs, self.order)

    def _set(self, name: str) -> frozenset[str]:
        return frozenset(self.indices[name])

    def _check(self, step: Product) -> None:
        """Check that an engine's rows and lanes both have an index in a product, and the sum has one."""
        _, left, right = step
        shared = self._set(left) & self._set(right)
        if not shared:
            raise ProgramError(
                f"'{_text(step)}': {left} and {right} share no index; an engine multiplies neighbours only"
            )
        for one in (left, right):
            if self._set(one) == shared:
                raise ProgramError(
                    f"'{_text(step)}' sums over all indices of {one} at once and leaves none for an engine's rows: "
                    f"contract {one} earlier"
                )
        vectors = elements(self.sizes, self.indices[step[0]]) // LANES
        most = max(M.banks[bank].depth for bank in inner_banks(()))
        if vectors > most:
            raise ProgramError(
                f"'{_text(step)}': {step[0]} takes {vectors:,} vectors, a bank for intermediates has {most:,}: choose "
                f"{SMALLER}"
            )

    def _inputs(self) -> dict[str, Stored]:
        """x, dy and the cores, as they are loaded."""
        arrangements = {"x": Arrangement(FEATURES["x"], 3), "dy": Arrangement(FEATURES["y"], 3)}
        for k, (name, axes) in enumerate(AXES.items(), 1):
            mode = f"i{k}" if k <= 3 else f"j{k - 3}"
            parts = [self.parts.get(index, ()) for index in (f"r{k - 1}", mode, f"r{k}")]
            arrangements[name] = Arrangement(tuple(index for axis in axes for index in parts[axis]), 1)
        inputs = {name: self._room(name, arrangement) for name, arrangement in arrangements.items()}
        self.tensors |= {name: Tensor(name, self._set(name), [stored]) for name, stored in inputs.items()}
        return inputs

    def _features(self, name: str) -> Stored:
        """Return y or dx as it is stored, a token after the other; y gets its bias."""
        stored = self._arranged(self.tensors[name], Arrangement(FEATURES[name.removeprefix("d")], 3))
        if name == "dx":
            return stored
        vectors, target = vectors_for(self.shape.out_features), self._room("y + b", stored.arrangement)
        y, total = (part(one.place, t=vectors, w=1) for one in (stored, target))
        loops = [Level("t", self.tokens), Level("w", vectors)]
        self.b.vector(M.ADD, "y + b", loops, y, part(self.bias.place, w=1), r0=total)
        return target

    def _transfer(self, name: str, stored: Stored) -> Transfer:
        """Return where a tensor lies, as it is loaded or stored; it stays there all the time."""
        order = stored.arrangement.order
        indices = order if order == ("feature",) else self.indices[name]
        shape, columns = tuple(self.sizes[i] for i in indices), stored.arrangement.row_elements(self.sizes)
        rows = math.prod(shape) // columns
        buffer = self.b.made[stored.place.number]
        buffer.is_lasting = True
        axes = tuple(indices.index(i) for i in order)
        return Transfer(name, Block(name, shape, axes, buffer, columns, rows, rows, 0, rows))

    # ---- places --------------------------------------------------------------------------------------------------

    def _room(self, name: str, arrangement: Arrangement) -> Stored:
        """Return room for a tensor in a bank."""
        return Stored(name, self.b.take(name, arrangement.vectors(self.sizes)), arrangement)

    def _copied(self, tensor: Tensor, target: Stored) -> Stored:
        """Fill a copy of a tensor from the one from which it takes the fewest steps."""
        to = target.arrangement, target.rows
        source = min(tensor.stored, key=lambda one: rearranging_steps(self.sizes, one.arrangement, *to))
        rearrange(self.b, self.sizes, source, target)
        return target

    def _arranged(self, tensor: Tensor, arrangement: Arrangement) -> Stored:
        """Return the tensor in an arrangement: a copy if need be."""
        for stored in tensor.stored:
            if arrangement in stored.arrangement.views(self.sizes):
                return replace(stored, arrangement=arrangement)
        tensor.stored.append(self._copied(tensor, self._room(f"{tensor.name}, permuted", arrangement)))
        return tensor.stored[-1]

    def _held(self, engine: int, tensor: Tensor, arrangement: Arrangement) -> Stored:
        """Return the tensor in an engine's operand buffer: its outermost index counts rows."""
        if (engine, arrangement) not in tensor.held:
            vectors = arrangement.vectors(self.sizes) // self.sizes[arrangement.order[0]]
            place = self.b.take_buffer(f"{tensor.name} for engine {engine}", engine, vectors)
            _, copy = self._loading(tensor, arrangement)
            if copy is not None:
                self._arranged(tensor, copy)
            tensor.held[engine, arrangement] = self._copied(tensor, Stored(tensor.name, place, arrangement))
        return tensor.held[engine, arrangement]

    # ---- products ------------------------------------------------------------------------------------------------

    def _product(self, product: Product) -> None:
        """Emit a product in its cheapest way."""
        result, left, right = product
        self.tensors[result] = Tensor(result, self._set(result))
        ways = [way for a, b in ((left, right), (right, left)) for way in self._ways(result, a, b)]
        refused = None
        for way in sorted(ways, key=lambda way: self._cost(result, way)):
            try:
                b = self._arranged(*way.b) if way.function is accumulate else self._held(way.engine, *way.b)
                a = self._arranged(*way.a)
                c = self._room(result, way.result)
                way.function(self.b, way.engine, _text(product), self.sizes, a, way.along, b, c)
            except ValueError as error:  # no room in an operand buffer, or too many loops
                refused = refused or error
                continue
            self.tensors[result].stored.append(c)
            self.load[way.engine] += way.steps
            return
        raise refused or ProgramError(
            f"'{_text(product)}': no engine can do it: it has {ROWS} rows, and neither operand has an index for them"
        )

    def _cost(self, result: str, way: _Way) -> float:
        """Return the cost of a way, that of permuting its result and of more work for the busier engine included."""
        other = self.load[1 - way.engine]
        return way.steps + way.waits + self._permuting(result, way.result) + max(self.load[way.engine] - other, 0) / 4

    def _ways(self, result: str, a: str, b: str) -> Iterator[_Way]:
        """Yield the ways in which A gives scalars or the stream; B is loaded, or streams if both have tokens."""
        one, other = self.tensors[a], self.tensors[b]
        k = one.indices & other.indices
        m, n = one.indices - k, other.indices - k
        if not other.has_tokens:
            yield from self._buffered_ways(result, one, other, k, m, n)
        if one.has_tokens == other.has_tokens:
            yield from self._streamed_ways(one, other, k, m, n)

    def _buffered_ways(self, result: str, one: Tensor, other: Tensor, k, m, n) -> Iterator[_Way]:
        sizes, want = self.sizes, self.wanted.get(result, frozenset())
        engines = (0, 1)
        if one.has_tokens:  # that of the core's end of the train
            engines = (0,) if any(index[0] == "j" for index in other.indices) else (1,)
        for (arrangement, permuting), engine in itertools.product(self._suffixes(one, k), engines):
            ks = arrangement.order[-len(k) :]
            ms = tuple(i for i in arrangement.order if i in m)
            # EXPAND: the last of k counts rows
            if arrangement.lanes == 1 and sizes[ks[-1]] <= ROWS and elements(sizes, ks[:-1]) <= MOST_PASSES:
                order = (*sorted(n - want), *sorted(n & want))
                for lanes in sorted({1, len(n & want) or 1, len(n)}):
                    outer = sorted((*ms, *order[:-lanes]), key=want.__contains__)
                    to = Arrangement((*outer, *order[-lanes:]), lanes)
                    held = Arrangement((ks[-1], *ks[:-1], *order), lanes)
                    steps = expand_steps(sizes, ks, to) + self._holding(engine, other, held)
                    waits = permuting + (elements(sizes, ks[:-1]) - 1) * PERMUTE_CYCLES
                    yield _Way(expand, engine, steps, waits, (one, arrangement), (other, held), ks, to)
            # REDUCE: the last of n counts rows
            for last in sorted(n):
                fixed = sorted(n - {last})
                if sizes[last] <= ROWS and elements(sizes, fixed) <= MOST_PASSES:
                    to = Arrangement((*sorted((*ms, *fixed), key=want.__contains__), last), 1)
                    held = Arrangement((last, *fixed, *ks), arrangement.lanes)
                    steps = reduce_steps(sizes, ms, held, fixed) + self._holding(engine, other, held)
                    yield _Way(reduce, engine, steps, permuting, (one, arrangement), (other, held), ks, to)

    def _streamed_ways(self, one: Tensor, other: Tensor, k, m, n) -> Iterator[_Way]:
        sizes = self.sizes
        for (scalars, permuting), (stream, more), engine in itertools.product(
            self._suffixes(one, m), self._suffixes(other, n), (0, 1)
        ):
            ms, ns = scalars.order[-len(m) :], stream.order[-len(n) :]
            vectors = Arrangement(ns, stream.lanes).vectors(sizes)
            runs = elements(sizes, ms[: -scalars.lanes]) * -(-vectors // M.ACCUMULATORS)
            if elements(sizes, scalars.packed) <= LANES and runs <= MOST_PASSES:
                rows = elements(sizes, scalars.packed)
                steps = accumulate_steps(sizes, k, runs, min(vectors, M.ACCUMULATORS), rows)
                to = Arrangement((*ms, *ns), stream.lanes)
                yield _Way(accumulate, engine, steps, permuting + more, (one, scalars), (other, stream), ms, to)

    def _holding(self, engine: int, tensor: Tensor, arrangement: Arrangement) -> float:
        """Return the cost of loading a tensor into an operand buffer, 0 if it is there."""
        return 0.0 if (engine, arrangement) in tensor.held else self._loading(tensor, arrangement)[0]

    def _loading(self, tensor: Tensor, to: Arrangement) -> tuple[float, Arrangement | None]:
        """Return the cost of loading a tensor, and the arrangement of a copy in a bank if it is cheaper by one."""
        of, (rows, *others) = tensor.arrangements, to.outer
        copies = to, Arrangement((*others, rows, *to.packed), to.lanes)
        ways = [(self._moving(of, to, rows), None)]
        ways += [(self._moving(of, copy) + self._moving([copy], to, rows), copy) for copy in copies]
        return min(ways, key=lambda way: way[0])

    def _moving(self, of: Iterable[Arrangement], to: Arrangement, rows: str = "") -> float:
        """Return the cost of re-ordering a tensor, from the best of its arrangements."""
        return min(rearranging_steps(self.sizes, one, to, rows) for one in of) + PERMUTE_CYCLES

    def _permuting(self, result: str, to: Arrangement) -> float:
        """Return the cost of permuting a result for its next use."""
        if result in ("y", "dx"):
            aim = Arrangement(FEATURES[result.removeprefix("d")], 3)
            return 0.0 if aim in to.views(self.sizes) else self._moving([to], aim)
        want = self.wanted.get(result)
        if not want or any(_ends_in(view, want) for view in to.views(self.sizes)):
            return 0.0
        return 4.0 * to.vectors(self.sizes) + 2 * PERMUTE_CYCLES

    def _suffixes(self, tensor: Tensor, last: frozenset[str]) -> list[tuple[Arrangement, float]]:
        """Return arrangements of a tensor that end in some of its indices, and what it costs to bring it there."""
        views = (view for one in tensor.arrangements for view in one.views(self.sizes))
        cost_of = {view: 0.0 for view in views if _ends_in(view, last)}
        order = tensor.arrangements[0].order
        front, back = [i for i in order if i not in last], [i for i in order if i in last]
        ends = [Arrangement((*front, *(i for i in back if i != final), final), 1) for final in back]
        for arrangement in (*ends, Arrangement((*front, *back), len(back))):
            if arrangement not in cost_of:
                cost_of[arrangement] = self._moving(tensor.arrangements, arrangement)
        return [(arrangement, cost) for arrangement, cost in cost_of.items() if cost < math.inf]


def compile_order(shape: LayerShape, tokens: int, order: Order) -> LayerProgram:
    """Return the program of a layer in a custom contraction path.

    Parameters
    ----------
    shape : LayerShape

    Raises
    ------
    ProgramError
        If the machine cannot run it; the message names the step and the way out.
    """
    check_tokens(tokens)
    try:
        return CustomPath(shape, tokens, order).program()
    except DoesNotFit as error:
        raise DoesNotFit(error.what, SMALLER) from None


def _even_passes(rank: int) -> tuple[int, int]:
    """Return passes and rows of each for a rank above ROWS."""
    for count in range(2, MOST_PASSES + 1):
        if rank % count == 0 and rank // count <= ROWS:
            return count, rank // count
    raise ProgramError(
        f"the layer has rank {rank}: a custom contraction path takes ranks above {ROWS} in passes of as many rows; "
        f"choose a multiple of {ROWS // 2}, or a flow by its name"
    )


def _text(product: Product) -> str:
    return f"{product[0]} = {product[1]} {product[2]}"


def _ends_in(arrangement: Arrangement, last: frozenset[str]) -> bool:
    """Return True if the last indices of an arrangement are these, in some order, and fill all lanes."""
    return set(arrangement.order[len(arrangement.order) - len(last) :]) == set(last) and arrangement.lanes <= len(last)
