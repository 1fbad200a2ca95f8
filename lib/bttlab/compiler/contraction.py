"""Products of a linear layer's tensors on an engine, each in its cheapest way (`products`).

A tensor lies in banks, in one arrangement or several, and in operand buffers. A product of cores alone is emitted when
something asks for it: into an operand buffer at once if it comes out as it is needed there.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from bttlab.compiler.arrangement import Arrangement, Sizes, Stored, elements, rearrange, rearranging_steps
from bttlab.compiler.builder import LANES, MOST_RANK, ROWS, Builder, row_passes
from bttlab.compiler.errors import ProgramError
from bttlab.compiler.instruction import At, Bound
from bttlab.compiler.machine import machine
from bttlab.compiler.operands import moved
from bttlab.compiler.products import accumulate, accumulate_steps, expand, expand_steps, reduce, reduce_steps
from bttlab.tensor.order import Product

M = machine()
PERMUTE_CYCLES = M.LATENCY  # cycles that a re-ordering costs beside its steps: what comes next waits for its results
MOST_PASSES = 16


@dataclass
class Tensor:
    """A tensor of the network: its indices, and its copies in banks.

    Attributes
    ----------
    product : tuple of str, optional
        What makes it, if it is not there yet.
    is_parameter : bool
        An engine reads scalars of it, or copies it into its operand buffer as it is: its other ports, and those of the
        shuffle unit, reach none of the banks.
    """

    name: str
    indices: frozenset[str]
    stored: list[Stored] = field(default_factory=list)
    product: Product | None = None
    is_parameter: bool = False

    @property
    def arrangements(self) -> list[Arrangement]:
        """Those of its copies in banks."""
        return [stored.arrangement for stored in self.stored]

    @property
    def has_tokens(self) -> bool:
        """True if its size depends on the tokens."""
        return "t" in self.indices


class Way(NamedTuple):
    """A way to do a product: one of `products`, its steps, what it waits for, and the operands.

    B is loaded into the operand buffer unless the engine accumulates; `along` are the indices that the function takes.
    """

    function: Callable
    steps: float
    waits: float
    a: tuple[Tensor, Arrangement]
    b: tuple[Tensor, Arrangement]
    along: Sequence[str]
    result: Arrangement


Held = dict[tuple[str, Arrangement], Stored]


class Contraction:
    """Emits products on one engine.

    Parameters
    ----------
    sizes : Sizes
        Most that each index has, and its bound.
    costs : Sizes
        Sizes for which the cheapest way is chosen.
    indices : mapping of str to tuple of str
        Of all tensors and gradients.
    wanted : mapping of str to frozenset of str
        Of each tensor: the indices that should lie along its vectors for its next use.
    targets : mapping of str to Stored
        Where results have to lie in the end.
    held : dict
        What lies in the operand buffer.
    room, room_held : callable
        From a name and vectors to a place in a bank, or in the operand buffer.
    known : dict
        The ways of products that are known; for layers of one order and one shape.
    """

    def __init__(
        self,
        b: Builder,
        engine: int,
        sizes: Sizes,
        costs: Sizes,
        indices: Mapping[str, tuple[str, ...]],
        wanted: Mapping[str, frozenset[str]],
        targets: Mapping[str, Arrangement],
        held: Held,
        room: Callable,
        room_held: Callable,
        known: dict,
    ):
        self.b, self.engine, self.sizes, self.costs, self.indices = b, engine, sizes, costs, indices
        self.wanted, self.targets, self.held, self._room, self._room_held = wanted, targets, held, room, room_held
        self._known = known
        self.tensors: dict[str, Tensor] = {}
        self.room_of: dict[str, Callable] = {}  # for what is kept elsewhere
        self.blocks: list[tuple[Bound, int, At]] | None = None  # of y: tokens of each block, the first, and its place

    def give(self, name: str, stored: Stored, is_parameter: bool = False) -> None:
        """Say where a tensor lies."""
        self.tensors.setdefault(name, Tensor(name, self.of(name), is_parameter=is_parameter)).stored.append(stored)

    def of(self, name: str) -> frozenset[str]:
        """Return the indices of a tensor."""
        return frozenset(self.indices[name])

    # ---- places --------------------------------------------------------------------------------------------------

    def room(self, name: str, arrangement: Arrangement) -> Stored:
        """Return room for a tensor in a bank."""
        room = self.room_of.get(name, self._room)
        return Stored(name, room(name, arrangement.vectors(self.sizes)), arrangement)

    def arranged(self, tensor: Tensor, arrangement: Arrangement) -> Stored:
        """Return a tensor in an arrangement: a copy if need be."""
        self._make(tensor, arrangement)
        for stored in tensor.stored:
            if arrangement in stored.arrangement.views(self.sizes):
                return replace(stored, arrangement=arrangement)
        return self.copied(tensor, self.room(f"{tensor.name}, permuted", arrangement))

    def copied(self, tensor: Tensor, target: Stored) -> Stored:
        """Fill a copy of a tensor from the one from which it takes the fewest steps."""
        rearrange(self.b, self.sizes, self._nearest(tensor.stored, target), target)
        tensor.stored.append(target)
        return target

    def _nearest(self, stored: Iterable[Stored], target: Stored) -> Stored:
        """Return the copy from which another takes the fewest steps."""
        to = target.arrangement, target.rows
        return min(stored, key=lambda one: rearranging_steps(self.costs, one.arrangement, *to))

    def buffered(self, tensor: Tensor, arrangement: Arrangement) -> Stored:
        """Return a tensor in the operand buffer: its outermost index counts rows."""
        key = tensor.name, arrangement
        if key not in self.held:
            rows = self.sizes[arrangement.order[0]]
            vectors, passes = arrangement.vectors(self.sizes) // rows, row_passes(rows)
            place = Stored(tensor.name, self._room_held(key, vectors * len(passes)), arrangement)
            if tensor.is_parameter:
                for n, some in passes:
                    source = tensor.stored[0].place.behind(ROWS * n * vectors)
                    moved(self.b, f"load {tensor.name}", source, place.place.behind(n * vectors), some, vectors)
            elif not self._made_there(tensor, place):
                self._make(tensor, arrangement, place.rows)
                is_cut = len(passes) > 1  # then rows are the outermost index of what is read, too
                _, copy = self._loading(tensor, arrangement)
                if is_cut or copy is not None:
                    self.arranged(tensor, arrangement if is_cut else copy)
                stored = [one for one in tensor.stored if not is_cut or one.arrangement.order[0] == place.rows]
                for sizes, own, there in self._passes(self._nearest(stored, place), place):
                    rearrange(self.b, sizes, own, there)
            self.held[key] = place
        return self.held[key]

    def _passes(self, source: Stored, place: Stored) -> Iterator[tuple[Sizes, Stored, Stored]]:
        """Yield the rows of each pass that an operand buffer gets: their sizes, where they come from and go to."""
        rows = place.rows
        vectors = place.arrangement.vectors(self.sizes) // self.sizes[rows]
        for n, some in row_passes(self.sizes[rows]):
            sizes = self.sizes if some == self.sizes[rows] else Sizes(self.sizes | {rows: some}, self.sizes.bounds)
            step = source.strides(self.sizes).get(rows, 0)
            # Strides are those of the whole: rows are outermost in what is read.
            yield (
                sizes,
                replace(source, place=source.place.behind(ROWS * n * step)),
                replace(place, place=place.place.behind(n * vectors)),
            )

    # ---- products ------------------------------------------------------------------------------------------------

    def product(self, product: Product, *options, **more) -> Stored:
        """Emit a product in its cheapest way, and return where the result lies. Options are those of `_emit`."""
        tensor = self.tensors[product[0]] = Tensor(product[0], self.of(product[0]), product=product)
        return self._emit(tensor, *options, **more)

    def promise(self, product: Product) -> None:
        """Name a product of cores, which is emitted when something asks for it."""
        self.tensors[product[0]] = Tensor(product[0], self.of(product[0]), product=product)

    def _make(self, tensor: Tensor, to: Arrangement, rows: str = "") -> None:
        """Emit a product of cores that is not there yet, in the way from which an arrangement is the cheapest."""
        if not tensor.stored:
            self._emit(tensor, aim=lambda way: self._reaching(way.result, to, rows))

    def _ways_there(self, tensor: Tensor, arrangement: Arrangement) -> Iterator[tuple]:
        """Yield the operands with which an engine leaves a product of cores as the operand buffer needs it."""
        rows = arrangement.order[0]
        pairs = () if tensor.stored or tensor.product is None else itertools.permutations(tensor.product[1:])
        for one, other in ([self.tensors[name] for name in pair] for pair in pairs):
            k = one.indices & other.indices
            n = other.indices - k
            view = next((v for v in arrangement.views(self.sizes) if set(v.packed) == n), None)
            if len(k) != 1 or view is None or rows not in one.indices:
                continue
            held = Arrangement((*k, *view.packed), view.lanes)
            ways = [(cost, of) for of, cost in self._suffixes(one, k) if of.lanes == 1]
            if self.sizes[rows] > ROWS:
                ways = [way for way in ways if way[1].order[0] == rows]
            if ways and self._holding(other, held) < math.inf:
                yield (one, min(ways, key=lambda way: way[0])[1]), (other, held), tuple(k), view

    def _made_there(self, tensor: Tensor, place: Stored) -> bool:
        """Make a product of cores in the operand buffer, if an engine leaves it as it is needed there."""
        for a, b, k, view in self._ways_there(tensor, place.arrangement):
            a, b = self.arranged(*a), self.buffered(*b)
            for sizes, own, there in self._passes(a, replace(place, arrangement=view)):
                expand(self.b, self.engine, _text(tensor.product), sizes, own, k, b, there)
            return True
        return False

    def cheapest(self, product: Product, may: Callable[[Way], bool]) -> Way | None:
        """Return the cheapest way of a product among those that may be taken."""
        tensor = Tensor(product[0], self.of(product[0]), product=product)
        return next((way for way in self._sorted_ways(tensor) if may(way)), None)

    def fits(self, way: Way, name: str) -> bool:
        """Return True if a way leaves a result as it has to lie in the end."""
        target = self.targets.get(name)
        return target is not None and target.arrangement in way.result.views(self.sizes)

    def _emit(
        self,
        tensor: Tensor,
        may: Callable[[Way], bool] = lambda _: True,
        addend: Callable[[Arrangement], Stored] | None = None,
        aim: Callable[[Way], float] | None = None,
        **more,
    ) -> Stored:
        refused = None
        for way in filter(may, self._sorted_ways(tensor, aim)):
            listed, held = len(self.b.instructions), dict(self.held)
            stored = {name: list(one.stored) for name, one in self.tensors.items()}
            try:
                b = self.arranged(*way.b) if way.function is accumulate else self.buffered(*way.b)
                a = self.arranged(*way.a)
                if fits := self.fits(way, tensor.name):
                    c = replace(self.targets[tensor.name], arrangement=way.result)
                else:
                    c = self.room(tensor.name, way.result)
                options, is_gradient = dict(more), tensor.name.startswith("dG")
                if addend:
                    options["addend"] = addend(way.result)
                if way.function is reduce and is_gradient:
                    options["flags"] = M.CHECK
                elif way.function is accumulate:
                    options |= {"check": is_gradient, "room": self._parts_of(tensor)}
                self._call(way, tensor, a, b, c, fits, options)
            except ValueError as error:  # no room in an operand buffer, or too many loops
                refused = refused or error
                del self.b.instructions[listed:]
                self.held.clear()
                self.held |= held
                for name, places in stored.items():
                    self.tensors[name].stored = places
                continue
            tensor.stored.append(c)
            return c
        raise refused or ProgramError(
            f"'{_text(tensor.product)}': no engine can do it: it has {ROWS} rows, and neither operand has an index for "
            "them"
        )

    def _parts_of(self, tensor: Tensor) -> Callable[[int], At]:
        return lambda vectors: self._room(f"{tensor.name}, in parts", vectors)

    def _call(self, way: Way, tensor: Tensor, a: Stored, b: Stored, c: Stored, fits: bool, options: dict) -> None:
        given = self.b, self.engine, _text(tensor.product)
        if not (fits and self.blocks):
            way.function(*given, self.sizes, a, way.along, b, c, **options)
            return
        t = a.strides(self.sizes)["t"]
        for bound, first, place in self.blocks:
            sizes = Sizes(self.sizes, {"t": bound})
            own = replace(a, place=a.place.behind(first * t))
            way.function(*given, sizes, own, way.along, b, replace(c, place=place), **options)

    def _sorted_ways(self, tensor: Tensor, aim: Callable[[Way], float] | None = None) -> list[Way]:
        result, left, right = tensor.product
        key = self.engine, result, self._state(left), self._state(right), frozenset(self.held), result in self.targets
        if key not in self._known:  # layers of one shape ask the same
            pairs = (left, right), (right, left)
            self._known[key] = [way for a, b in pairs for way in self._ways(result, a, b)]
        ways = [
            way._replace(a=(self.tensors[way.a[0].name], way.a[1]), b=(self.tensors[way.b[0].name], way.b[1]))
            for way in self._known[key]
        ]
        aim = aim or (lambda way: self._permuting(result, way.result))
        costs = [(way.steps + way.waits + aim(way), way) for way in ways]
        return [way for cost, way in sorted(costs, key=lambda one: one[0]) if cost < math.inf]

    def _state(self, name: str) -> tuple:
        """Return all that the ways of a product depend on of an operand: where it lies, or what it will be made of."""
        tensor = self.tensors[name]
        return name, tuple(tensor.arrangements) or tuple(map(self._state, tensor.product[1:]))

    def _ways(self, result: str, a: str, b: str) -> Iterator[Way]:
        """Yield the ways in which A gives scalars or the stream; B is loaded, or streams if both have tokens."""
        one, other = self.tensors[a], self.tensors[b]
        k = one.indices & other.indices
        m, n = one.indices - k, other.indices - k
        if not other.has_tokens:
            yield from self._buffered_ways(result, one, other, k, m, n)
        if one.has_tokens == other.has_tokens and not other.is_parameter:
            yield from self._streamed_ways(one, other, k, m, n)

    def _buffered_ways(self, result: str, one: Tensor, other: Tensor, k, m, n) -> Iterator[Way]:
        sizes, want = self.costs, self.wanted.get(result, frozenset())
        for arrangement, permuting in self._suffixes(one, k):
            ks = arrangement.order[-len(k) :]
            ms = tuple(i for i in arrangement.order if i in m)
            # EXPAND: the last of k counts rows
            if arrangement.lanes == 1 and sizes[ks[-1]] <= MOST_RANK and elements(sizes, ks[:-1]) <= MOST_PASSES:
                order = (*sorted(n - want), *sorted(n & want))
                if other.is_parameter:  # it is loaded as it is
                    order = tuple(i for i in other.arrangements[0].order if i in n)
                for lanes in sorted({1, len(n & want) or 1, len(n)}):
                    to = self._outer(result, (*ms, *order[:-lanes]), order[-lanes:], lanes)
                    held = Arrangement((ks[-1], *ks[:-1], *order), lanes)
                    steps = expand_steps(sizes, ks, to) + self._holding(other, held)
                    waits = permuting + (elements(sizes, ks[:-1]) - 1) * PERMUTE_CYCLES
                    yield Way(expand, steps, waits, (one, arrangement), (other, held), ks, to)
            # REDUCE: the last of n counts rows
            for last in sorted(n) if not one.is_parameter else ():
                fixed = sorted(n - {last})
                if sizes[last] <= MOST_RANK and elements(sizes, fixed) <= MOST_PASSES:
                    to = self._outer(result, (*ms, *fixed), (last,), 1)
                    held = Arrangement((last, *fixed, *ks), arrangement.lanes)
                    steps = reduce_steps(sizes, ms, held, fixed) + self._holding(other, held)
                    yield Way(reduce, steps, permuting, (one, arrangement), (other, held), ks, to)

    def _outer(self, result: str, outer: Sequence[str], packed: Sequence[str], lanes: int) -> Arrangement:
        """Return an arrangement with the outer indices in the order in which the result has to lie, or is wanted."""
        target = self.targets.get(result)
        if target is not None:
            for view in target.arrangement.views(self.costs):
                if view.packed == tuple(packed) and set(view.outer) == set(outer):
                    return view
        want = self.wanted.get(result, frozenset())
        return Arrangement((*sorted(outer, key=want.__contains__), *packed), lanes)

    def _streamed_ways(self, one: Tensor, other: Tensor, k, m, n) -> Iterator[Way]:
        sizes = self.costs
        for (scalars, permuting), (stream, more) in itertools.product(self._suffixes(one, m), self._suffixes(other, n)):
            ms, ns = scalars.order[-len(m) :], stream.order[-len(n) :]
            vectors = Arrangement(ns, stream.lanes).vectors(sizes)
            runs = elements(sizes, ms[: -scalars.lanes]) * -(-vectors // M.ACCUMULATORS)
            most = LANES if len(scalars.packed) > 1 else MOST_RANK
            if elements(sizes, scalars.packed) <= most and runs <= MOST_PASSES:
                rows = elements(sizes, scalars.packed)
                steps = accumulate_steps(sizes, k, runs, min(vectors, M.ACCUMULATORS), rows)
                to = Arrangement((*ms, *ns), stream.lanes)
                yield Way(accumulate, steps, permuting + more, (one, scalars), (other, stream), ms, to)

    # ---- costs ---------------------------------------------------------------------------------------------------

    def _arrangements(self, tensor: Tensor) -> list[Arrangement]:
        """Those that a tensor has, or will have once it is made."""
        if tensor.stored:
            return tensor.arrangements
        return list(dict.fromkeys(way.result for way in self._sorted_ways(tensor)))

    def _holding(self, tensor: Tensor, arrangement: Arrangement) -> float:
        """Return the cost of loading a tensor into the operand buffer, 0 if it is there."""
        if (tensor.name, arrangement) in self.held:
            return 0.0
        if next(self._ways_there(tensor, arrangement), None) is not None:  # made at once as it is needed
            return float(arrangement.vectors(self.costs))
        if tensor.is_parameter:
            is_there = any(arrangement in one.views(self.sizes) for one in tensor.arrangements)
            return float(arrangement.vectors(self.costs)) if is_there else math.inf
        return self._loading(tensor, arrangement)[0]

    def _loading(self, tensor: Tensor, to: Arrangement) -> tuple[float, Arrangement | None]:
        """Return the cost of loading a tensor, and the arrangement of a copy in a bank if it is cheaper by one."""
        of, (rows, *others) = self._arrangements(tensor), to.outer
        copies = to, Arrangement((*others, rows, *to.packed), to.lanes)
        ways = [(self._moving(of, to, rows), None)]
        ways += [(self._moving(of, copy) + self._moving([copy], to, rows), copy) for copy in copies]
        return min(ways, key=lambda way: way[0])

    def _moving(self, of: Iterable[Arrangement], to: Arrangement, rows: str = "") -> float:
        """Return the cost of re-ordering a tensor, from the best of its arrangements."""
        return min(rearranging_steps(self.costs, one, to, rows) for one in of) + PERMUTE_CYCLES

    def _reaching(self, one: Arrangement, to: Arrangement, rows: str) -> float:
        return 0.0 if to in one.views(self.costs) else self._moving([one], to, rows)

    def _permuting(self, result: str, to: Arrangement) -> float:
        """Return the cost of permuting a result for its next use."""
        if result in self.targets:
            aim = self.targets[result].arrangement
            if aim in to.views(self.costs):
                return 0.0
            return math.inf if result.startswith("dG") else self._moving([to], aim)
        want = self.wanted.get(result)
        if not want or any(_ends_in(view, want) for view in to.views(self.costs)):
            return 0.0
        return 4.0 * to.vectors(self.costs) + 2 * PERMUTE_CYCLES

    def _suffixes(self, tensor: Tensor, last: frozenset[str]) -> list[tuple[Arrangement, float]]:
        """Return arrangements of a tensor that end in some of its indices, and what it costs to bring it there."""
        arrangements = self._arrangements(tensor)
        views = (view for one in arrangements for view in one.views(self.costs))
        cost_of = {view: 0.0 for view in views if _ends_in(view, last)}
        order = arrangements[0].order
        if tensor.is_parameter:
            return list(cost_of.items())
        front, back = [i for i in order if i not in last], [i for i in order if i in last]
        ends = [Arrangement((*front, *(i for i in back if i != final), final), 1) for final in back]
        for arrangement in (*ends, Arrangement((*front, *back), len(back))):
            if arrangement not in cost_of:
                cost_of[arrangement] = self._moving(arrangements, arrangement)
        return [(arrangement, cost) for arrangement, cost in cost_of.items() if cost < math.inf]


def _text(product: Product) -> str:
    return f"{product[0]} = {product[1]} {product[2]}"


def _ends_in(arrangement: Arrangement, last: frozenset[str]) -> bool:
    """Return True if the last indices of an arrangement are these, in some order, and fill all lanes."""
    return set(arrangement.order[len(arrangement.order) - len(last) :]) == set(last) and arrangement.lanes <= len(last)
