"""Emit the tensor products of a linear layer on an engine, each by its cheapest operation (`products`).

A tensor can have copies in several banks, each in an arrangement of its own, and in operand buffers. A product of cores
alone is emitted when it is first read. If the engine produces it in the arrangement that an operand buffer needs, it is
written there directly.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from bttlab.compiler.arrangement import Arrangement, Sizes, Stored, elements, rearrange, rearranging_steps
from bttlab.compiler.builder import LANES, MAX_RANK, ROWS, Builder, row_passes
from bttlab.compiler.errors import ProgramError
from bttlab.compiler.instruction import At, Bound
from bttlab.compiler.machine import M
from bttlab.compiler.operands import load_rows
from bttlab.compiler.products import accumulate, accumulate_steps, expand, expand_steps, reduce, reduce_steps
from bttlab.tensor.order import Product

PERMUTE_CYCLES = M.LATENCY  # cost of a permutation on top of its steps: the next instruction waits for its results
MAX_PASSES = 16


@dataclass
class Tensor:
    """A tensor of the network: its indices, and its copies in banks.

    Attributes
    ----------
    product : tuple of str, optional
        The product that computes it.
    is_parameter : bool
        Whether it is in a bank of parameters. An engine can read scalars from these banks or copy rows into its operand
        buffer; its other ports, and those of the shuffle unit, do not reach them.
    """

    name: str
    indices: frozenset[str]
    stored: list[Stored] = field(default_factory=list)
    product: Product | None = None
    is_parameter: bool = False

    @property
    def arrangements(self) -> list[Arrangement]:
        """Arrangements of its copies in banks."""
        return [stored.arrangement for stored in self.stored]

    @property
    def has_tokens(self) -> bool:
        """True if its size depends on the tokens."""
        return "t" in self.indices


class Candidate(NamedTuple):
    """A way to compute a product C = A B on an engine.

    Attributes
    ----------
    function : callable
        `expand`, `reduce` or `accumulate` of `products`.
    steps : float
        Steps of the engine, and of loading B.
    delay : float
        Cycles for which the product waits for permutations of its operands.
    a, b : tuple of (Tensor, Arrangement)
        Operands. `accumulate` streams B from a bank; the others read it from the operand buffer.
    contracted : sequence of str
        The function's argument `k`; for `accumulate`, its argument `m`.
    result : Arrangement
        Arrangement of C.
    """

    function: Callable
    steps: float
    delay: float
    a: tuple[Tensor, Arrangement]
    b: tuple[Tensor, Arrangement]
    contracted: Sequence[str]
    result: Arrangement


BufferContents = dict[tuple[str, Arrangement], Stored]


class Contraction:
    """Emits products on one engine.

    Parameters
    ----------
    sizes : Sizes
        Largest size of each index, and its bound.
    costs : Sizes
        Sizes for which the cheapest candidate is chosen.
    indices : mapping of str to tuple of str
        Indices of all tensors and gradients.
    preferred : mapping of str to frozenset of str
        For each tensor, the indices that its next use reads along the lanes.
    targets : mapping of str to Stored
        Required place and arrangement of final results.
    loaded : dict
        Contents of the operand buffer.
    allocate, allocate_buffer : callable
        Map a name and a number of vectors to a place in a bank, or in the operand buffer.
    cache : dict
        Candidates of products, shared by layers of the same order and shape.
    """

    def __init__(
        self,
        b: Builder,
        engine: int,
        sizes: Sizes,
        costs: Sizes,
        indices: Mapping[str, tuple[str, ...]],
        preferred: Mapping[str, frozenset[str]],
        targets: Mapping[str, Arrangement],
        loaded: BufferContents,
        allocate: Callable,
        allocate_buffer: Callable,
        cache: dict,
    ):
        self.b, self.engine, self.sizes, self.costs, self.indices = b, engine, sizes, costs, indices
        self.preferred, self.targets, self.loaded = preferred, targets, loaded
        self._allocate, self._allocate_buffer = allocate, allocate_buffer
        self._cache = cache
        self.tensors: dict[str, Tensor] = {}
        self.allocators: dict[str, Callable] = {}  # replace `allocate` for tensors of these names
        self.blocks: list[tuple[Bound, int, At]] | None = None  # of y: tokens of each block, the first, and its place

    def add_copy(self, name: str, stored: Stored, is_parameter: bool = False) -> None:
        """Record where a tensor is stored."""
        self.tensors.setdefault(name, Tensor(name, self.indices_of(name), is_parameter=is_parameter)).stored.append(
            stored
        )

    def indices_of(self, name: str) -> frozenset[str]:
        """Return the indices of a tensor."""
        return frozenset(self.indices[name])

    # ---- places --------------------------------------------------------------------------------------------------

    def allocate(self, name: str, arrangement: Arrangement) -> Stored:
        """Allocate vectors of a bank for a tensor."""
        allocate = self.allocators.get(name, self._allocate)
        return Stored(name, allocate(name, arrangement.vectors(self.sizes)), arrangement)

    def arranged(self, tensor: Tensor, arrangement: Arrangement) -> Stored:
        """Return a copy of a tensor in an arrangement; permute the tensor if it has none."""
        self._make(tensor, arrangement)
        for stored in tensor.stored:
            if arrangement in stored.arrangement.views(self.sizes):
                return replace(stored, arrangement=arrangement)
        return self.copy_to(tensor, self.allocate(f"{tensor.name}, permuted", arrangement))

    def copy_to(self, tensor: Tensor, target: Stored) -> Stored:
        """Copy a tensor to a place and arrangement, from the existing copy that takes the fewest steps."""
        rearrange(self.b, self.sizes, self._nearest(tensor.stored, target), target)
        tensor.stored.append(target)
        return target

    def _nearest(self, stored: Iterable[Stored], target: Stored) -> Stored:
        """Return the copy that takes the fewest steps to rearrange into the target."""
        to = target.arrangement, target.rows
        return min(stored, key=lambda copy: rearranging_steps(self.costs, copy.arrangement, *to))

    def buffered(self, tensor: Tensor, arrangement: Arrangement) -> Stored:
        """Return a tensor in the operand buffer, loaded if necessary; its outermost index counts rows."""
        key = tensor.name, arrangement
        if key not in self.loaded:
            rows = self.sizes[arrangement.order[0]]
            vectors, passes = arrangement.vectors(self.sizes) // rows, row_passes(rows)
            place = Stored(tensor.name, self._allocate_buffer(key, vectors * len(passes)), arrangement)
            if tensor.is_parameter:
                for n, some in passes:
                    source = tensor.stored[0].place.offset_by(ROWS * n * vectors)
                    load_rows(self.b, f"load {tensor.name}", source, place.place.offset_by(n * vectors), some, vectors)
            elif not self._emit_into_buffer(tensor, place):
                self._make(tensor, arrangement, place.rows)
                is_cut = len(passes) > 1  # the source, too, must then have the rows as its outermost index
                _, copy = self._load_cost(tensor, arrangement)
                if is_cut or copy is not None:
                    self.arranged(tensor, arrangement if is_cut else copy)
                stored = [s for s in tensor.stored if not is_cut or s.arrangement.order[0] == place.rows]
                for sizes, source, destination in self._passes(self._nearest(stored, place), place):
                    rearrange(self.b, sizes, source, destination)
            self.loaded[key] = place
        return self.loaded[key]

    def _passes(self, source: Stored, place: Stored) -> Iterator[tuple[Sizes, Stored, Stored]]:
        """Yield the sizes, source and destination of each pass of up to ROWS rows into an operand buffer."""
        rows = place.rows
        vectors = place.arrangement.vectors(self.sizes) // self.sizes[rows]
        for n, some in row_passes(self.sizes[rows]):
            sizes = self.sizes if some == self.sizes[rows] else Sizes(self.sizes | {rows: some}, self.sizes.bounds)
            step = source.strides(self.sizes).get(rows, 0)
            # Rows are the outermost index of the source, so its other strides do not depend on their number.
            yield (
                sizes,
                replace(source, place=source.place.offset_by(ROWS * n * step)),
                replace(place, place=place.place.offset_by(n * vectors)),
            )

    # ---- products ------------------------------------------------------------------------------------------------

    def product(self, product: Product, *options, **arguments) -> Stored:
        """Emit the cheapest candidate of a product and return its stored result. Options are those of `_emit`."""
        tensor = self.tensors[product[0]] = Tensor(product[0], self.indices_of(product[0]), product=product)
        return self._emit(tensor, *options, **arguments)

    def defer(self, product: Product) -> None:
        """Register a product of cores; it is emitted when it is first read."""
        self.tensors[product[0]] = Tensor(product[0], self.indices_of(product[0]), product=product)

    def _make(self, tensor: Tensor, to: Arrangement, rows: str = "") -> None:
        """Emit a deferred product by the candidate that reaches an arrangement at the least total cost."""
        if not tensor.stored:
            self._emit(tensor, result_cost=lambda candidate: self._reach_cost(candidate.result, to, rows))

    def _direct_operands(self, tensor: Tensor, arrangement: Arrangement) -> Iterator[tuple]:
        """Yield the operands from which EXPAND writes a product of cores directly into the operand buffer.

        Yields
        ------
        tuple of (Tensor, Arrangement)
            A.
        tuple of (Tensor, Arrangement)
            B.
        tuple of str
            The index that they share.
        Arrangement
            A view of `arrangement` in which EXPAND writes the product.
        """
        rows = arrangement.order[0]
        pairs = () if tensor.stored or tensor.product is None else itertools.permutations(tensor.product[1:])
        for a, b in ([self.tensors[name] for name in pair] for pair in pairs):
            k = a.indices & b.indices
            n = b.indices - k
            view = next((v for v in arrangement.views(self.sizes) if set(v.packed) == n), None)
            if len(k) != 1 or view is None or rows not in a.indices:
                continue
            in_buffer = Arrangement((*k, *view.packed), view.lanes)
            choices = [(cost, of) for of, cost in self._suffixes(a, k) if of.lanes == 1]
            if self.sizes[rows] > ROWS:
                choices = [choice for choice in choices if choice[1].order[0] == rows]
            if choices and self._buffer_cost(b, in_buffer) < math.inf:
                yield (a, min(choices, key=lambda choice: choice[0])[1]), (b, in_buffer), tuple(k), view

    def _emit_into_buffer(self, tensor: Tensor, place: Stored) -> bool:
        """Emit a product of cores directly into the operand buffer; return False if no arrangement allows it."""
        for a, b, k, view in self._direct_operands(tensor, place.arrangement):
            a, b = self.arranged(*a), self.buffered(*b)
            for sizes, source, destination in self._passes(a, replace(place, arrangement=view)):
                expand(self.b, self.engine, _text(tensor.product), sizes, source, k, b, destination)
            return True
        return False

    def cheapest(self, product: Product, accept: Callable[[Candidate], bool]) -> Candidate | None:
        """Return the cheapest candidate of a product that is accepted, None if none is."""
        tensor = Tensor(product[0], self.indices_of(product[0]), product=product)
        return next((candidate for candidate in self._sorted_candidates(tensor) if accept(candidate)), None)

    def matches_target(self, candidate: Candidate, name: str) -> bool:
        """Return True if a candidate's result has the arrangement that its target requires."""
        target = self.targets.get(name)
        return target is not None and target.arrangement in candidate.result.views(self.sizes)

    def _emit(
        self,
        tensor: Tensor,
        accept: Callable[[Candidate], bool] = lambda _: True,
        addend: Callable[[Arrangement], Stored] | None = None,
        result_cost: Callable[[Candidate], float] | None = None,
        **arguments,
    ) -> Stored:
        """Emit a tensor's product by the cheapest accepted candidate whose instructions the machine can encode.

        Parameters
        ----------
        accept : callable
            Whether a candidate may be used.
        addend : callable, optional
            From the arrangement of the result to the tensor that is added to it.
        result_cost : callable, optional
            From a candidate to the cost of its result's arrangement; by default `_permute_cost`.
        arguments : dict
            Further arguments of the candidate's function.

        Raises
        ------
        ValueError
            If no candidate works: the error of the cheapest, a ProgramError if there is no candidate.
        """
        first_error = None
        for candidate in filter(accept, self._sorted_candidates(tensor, result_cost)):
            emitted, loaded = len(self.b.instructions), dict(self.loaded)
            stored = {name: list(tensor.stored) for name, tensor in self.tensors.items()}
            try:
                b = self.arranged(*candidate.b) if candidate.function is accumulate else self.buffered(*candidate.b)
                a = self.arranged(*candidate.a)
                if is_final := self.matches_target(candidate, tensor.name):
                    c = replace(self.targets[tensor.name], arrangement=candidate.result)
                else:
                    c = self.allocate(tensor.name, candidate.result)
                options, is_gradient = dict(arguments), tensor.name.startswith("dG")
                if addend:
                    options["addend"] = addend(candidate.result)
                if candidate.function is reduce and is_gradient:
                    options["flags"] = M.CHECK
                elif candidate.function is accumulate:
                    options |= {"check": is_gradient, "allocate": self._allocate_partial_sums(tensor)}
                self._call(candidate, tensor, a, b, c, is_final, options)
            except ValueError as error:  # no space in an operand buffer, or too many loops
                first_error = first_error or error
                del self.b.instructions[emitted:]
                self.loaded.clear()
                self.loaded |= loaded
                for name, places in stored.items():
                    self.tensors[name].stored = places
                continue
            tensor.stored.append(c)
            return c
        raise first_error or ProgramError(
            f"'{_text(tensor.product)}': no engine can compute it: an engine has {ROWS} rows, and neither operand has "
            "an index for them"
        )

    def _allocate_partial_sums(self, tensor: Tensor) -> Callable[[int], At]:
        return lambda vectors: self._allocate(f"{tensor.name}, in parts", vectors)

    def _call(
        self, candidate: Candidate, tensor: Tensor, a: Stored, b: Stored, c: Stored, is_final: bool, options: dict
    ) -> None:
        """Emit a candidate's instructions: for each block of tokens if the result goes to `blocks`."""
        arguments = self.b, self.engine, _text(tensor.product)
        if not (is_final and self.blocks):
            candidate.function(*arguments, self.sizes, a, candidate.contracted, b, c, **options)
            return
        t = a.strides(self.sizes)["t"]
        for bound, first, place in self.blocks:
            sizes = Sizes(self.sizes, {"t": bound})
            block = replace(a, place=a.place.offset_by(first * t))
            candidate.function(*arguments, sizes, block, candidate.contracted, b, replace(c, place=place), **options)

    def _sorted_candidates(
        self, tensor: Tensor, result_cost: Callable[[Candidate], float] | None = None
    ) -> list[Candidate]:
        """Return the candidates of a tensor's product, the cheapest first."""
        result, left, right = tensor.product
        key = self.engine, result, self._state(left), self._state(right), frozenset(self.loaded), result in self.targets
        if key not in self._cache:  # layers of the same shape look up the same keys
            pairs = (left, right), (right, left)
            self._cache[key] = [candidate for a, b in pairs for candidate in self._candidates(result, a, b)]
        candidates = [
            candidate._replace(
                a=(self.tensors[candidate.a[0].name], candidate.a[1]),
                b=(self.tensors[candidate.b[0].name], candidate.b[1]),
            )
            for candidate in self._cache[key]
        ]
        result_cost = result_cost or (lambda candidate: self._permute_cost(result, candidate.result))
        costs = [(candidate.steps + candidate.delay + result_cost(candidate), candidate) for candidate in candidates]
        return [candidate for cost, candidate in sorted(costs, key=lambda pair: pair[0]) if cost < math.inf]

    def _state(self, name: str) -> tuple:
        """Return what candidates depend on of an operand: its arrangements, or the state of its own operands."""
        tensor = self.tensors[name]
        return name, tuple(tensor.arrangements) or tuple(map(self._state, tensor.product[1:]))

    def _candidates(self, result: str, a_name: str, b_name: str) -> Iterator[Candidate]:
        """Yield candidates in which A gives the scalars or the stream.

        B is in the operand buffer; if both tensors have tokens, or neither has, it may be streamed from a bank too.
        """
        a, b = self.tensors[a_name], self.tensors[b_name]
        k = a.indices & b.indices
        m, n = a.indices - k, b.indices - k
        if not b.has_tokens:
            yield from self._buffered_candidates(result, a, b, k, m, n)
        if a.has_tokens == b.has_tokens and not b.is_parameter:
            yield from self._streamed_candidates(a, b, k, m, n)

    def _buffered_candidates(self, result: str, a: Tensor, b: Tensor, k, m, n) -> Iterator[Candidate]:
        """Yield candidates that read B from the operand buffer: EXPAND and REDUCE."""
        sizes, preferred = self.costs, self.preferred.get(result, frozenset())
        for arrangement, permute_cost in self._suffixes(a, k):
            ks = arrangement.order[-len(k) :]
            ms = tuple(i for i in arrangement.order if i in m)
            # EXPAND: the last of k counts rows
            if arrangement.lanes == 1 and sizes[ks[-1]] <= MAX_RANK and elements(sizes, ks[:-1]) <= MAX_PASSES:
                order = (*sorted(n - preferred), *sorted(n & preferred))
                if b.is_parameter:  # parameters are loaded without a permutation
                    order = tuple(i for i in b.arrangements[0].order if i in n)
                for lanes in sorted({1, len(n & preferred) or 1, len(n)}):
                    to = self._outer(result, (*ms, *order[:-lanes]), order[-lanes:], lanes)
                    in_buffer = Arrangement((ks[-1], *ks[:-1], *order), lanes)
                    steps = expand_steps(sizes, ks, to) + self._buffer_cost(b, in_buffer)
                    delay = permute_cost + (elements(sizes, ks[:-1]) - 1) * PERMUTE_CYCLES
                    yield Candidate(expand, steps, delay, (a, arrangement), (b, in_buffer), ks, to)
            # REDUCE: the last of n counts rows
            for last in sorted(n) if not a.is_parameter else ():
                fixed = sorted(n - {last})
                if sizes[last] <= MAX_RANK and elements(sizes, fixed) <= MAX_PASSES:
                    to = self._outer(result, (*ms, *fixed), (last,), 1)
                    in_buffer = Arrangement((last, *fixed, *ks), arrangement.lanes)
                    steps = reduce_steps(sizes, ms, in_buffer, fixed) + self._buffer_cost(b, in_buffer)
                    yield Candidate(reduce, steps, permute_cost, (a, arrangement), (b, in_buffer), ks, to)

    def _outer(self, result: str, outer: Sequence[str], packed: Sequence[str], lanes: int) -> Arrangement:
        """Return an arrangement with the outer indices in the order of the result's target, or of its preference."""
        target = self.targets.get(result)
        if target is not None:
            for view in target.arrangement.views(self.costs):
                if view.packed == tuple(packed) and set(view.outer) == set(outer):
                    return view
        preferred = self.preferred.get(result, frozenset())
        return Arrangement((*sorted(outer, key=preferred.__contains__), *packed), lanes)

    def _streamed_candidates(self, a: Tensor, b: Tensor, k, m, n) -> Iterator[Candidate]:
        """Yield candidates that stream B from a bank: ACCUMULATE."""
        sizes = self.costs
        for (scalars, cost_a), (stream, cost_b) in itertools.product(self._suffixes(a, m), self._suffixes(b, n)):
            ms, ns = scalars.order[-len(m) :], stream.order[-len(n) :]
            vectors = Arrangement(ns, stream.lanes).vectors(sizes)
            runs = elements(sizes, ms[: -scalars.lanes]) * -(-vectors // M.ACCUMULATORS)
            most = LANES if len(scalars.packed) > 1 else MAX_RANK
            if elements(sizes, scalars.packed) <= most and runs <= MAX_PASSES:
                rows = elements(sizes, scalars.packed)
                steps = accumulate_steps(sizes, k, runs, min(vectors, M.ACCUMULATORS), rows)
                to = Arrangement((*ms, *ns), stream.lanes)
                yield Candidate(accumulate, steps, cost_a + cost_b, (a, scalars), (b, stream), ms, to)

    # ---- costs ---------------------------------------------------------------------------------------------------

    def _arrangements(self, tensor: Tensor) -> list[Arrangement]:
        """Return the arrangements that a tensor has, or those of its candidates if it is not computed yet."""
        if tensor.stored:
            return tensor.arrangements
        return list(dict.fromkeys(candidate.result for candidate in self._sorted_candidates(tensor)))

    def _buffer_cost(self, tensor: Tensor, arrangement: Arrangement) -> float:
        """Return the cost of loading a tensor into the operand buffer, 0 if it is already there."""
        if (tensor.name, arrangement) in self.loaded:
            return 0.0
        if next(self._direct_operands(tensor, arrangement), None) is not None:  # EXPAND writes it there
            return float(arrangement.vectors(self.costs))
        if tensor.is_parameter:
            has_it = any(arrangement in stored.views(self.sizes) for stored in tensor.arrangements)
            return float(arrangement.vectors(self.costs)) if has_it else math.inf
        return self._load_cost(tensor, arrangement)[0]

    def _load_cost(self, tensor: Tensor, to: Arrangement) -> tuple[float, Arrangement | None]:
        """Return the least cost of loading a tensor, and the arrangement of the temporary copy for it, if any."""
        of, (rows, *outer) = self._arrangements(tensor), to.outer
        copies = to, Arrangement((*outer, rows, *to.packed), to.lanes)
        choices = [(self._rearrange_cost(of, to, rows), None)]
        choices += [(self._rearrange_cost(of, copy) + self._rearrange_cost([copy], to, rows), copy) for copy in copies]
        return min(choices, key=lambda choice: choice[0])

    def _rearrange_cost(self, of: Iterable[Arrangement], to: Arrangement, rows: str = "") -> float:
        """Return the least cost of rearranging a tensor from one of its arrangements."""
        steps = (rearranging_steps(self.costs, source, to, rows) for source in of)
        return min(steps, default=math.inf) + PERMUTE_CYCLES

    def _reach_cost(self, source: Arrangement, to: Arrangement, rows: str) -> float:
        return 0.0 if to in source.views(self.costs) else self._rearrange_cost([source], to, rows)

    def _permute_cost(self, result: str, to: Arrangement) -> float:
        """Return the cost of permuting a result for its next use."""
        if result in self.targets:
            target = self.targets[result].arrangement
            if target in to.views(self.costs):
                return 0.0
            return math.inf if result.startswith("dG") else self._rearrange_cost([to], target)
        preferred = self.preferred.get(result)
        if not preferred or any(_ends_in(view, preferred) for view in to.views(self.costs)):
            return 0.0
        return 4.0 * to.vectors(self.costs) + 2 * PERMUTE_CYCLES

    def _suffixes(self, tensor: Tensor, last: frozenset[str]) -> list[tuple[Arrangement, float]]:
        """Return arrangements of a tensor that end in given indices, and the cost of rearranging it to each."""
        arrangements = self._arrangements(tensor)
        if not arrangements:  # no unit computes it
            return []
        views = (view for arrangement in arrangements for view in arrangement.views(self.costs))
        cost_of = {view: 0.0 for view in views if _ends_in(view, last)}
        order = arrangements[0].order
        if tensor.is_parameter:
            return list(cost_of.items())
        front, back = [i for i in order if i not in last], [i for i in order if i in last]
        ends = [Arrangement((*front, *(i for i in back if i != final), final), 1) for final in back]
        for arrangement in (*ends, Arrangement((*front, *back), len(back))):
            if arrangement not in cost_of:
                cost_of[arrangement] = self._rearrange_cost(arrangements, arrangement)
        return [(arrangement, cost) for arrangement, cost in cost_of.items() if cost < math.inf]


def _text(product: Product) -> str:
    return f"{product[0]} = {product[1]} {product[2]}"


def _ends_in(arrangement: Arrangement, last: frozenset[str]) -> bool:
    """Return True if an arrangement ends in these indices, in any order, and packs no others along the lanes."""
    return set(arrangement.order[len(arrangement.order) - len(last) :]) == set(last) and arrangement.lanes <= len(last)
