"""Candidates of a product C = A B on an engine: what each operation of the engine takes, with its operands rearranged.

A tensor can have copies in the banks, each in an arrangement of its own, and in operand buffers.
"""

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bttlab.compiler.builder import LANES, MAX_RANK, ROWS
from bttlab.compiler.machine import M
from bttlab.compiler.plan.arrangement import Arrangement, elements, fused, loops_of, rearranging_steps
from bttlab.compiler.plan.products import accumulate_steps, expand_steps, reduce_steps, summed_indices
from bttlab.compiler.plan.tt_layer import TTLayer
from bttlab.tensor.order import Product

Copy = tuple[str, Arrangement]  # a tensor's name, and how its elements are arranged
# Cost of a permutation on top of its steps: the next instruction waits for its results. It is that of the overlay's
# clock, so that a program makes the same sums in the same order at each clock.
PERMUTE_CYCLES = M.LATENCY
MAX_PASSES = 16


@dataclass
class Tensor:
    """A tensor of the network: its indices, and the arrangements of its copies in banks."""

    name: str
    indices: frozenset[str]
    copies: list[Arrangement] = field(default_factory=list)
    product: Product | None = None  # the product that computes it
    # Whether it is in a bank of parameters. An engine can read scalars from these banks, and its operand buffer can be
    # loaded from them without a permutation; its other ports do not reach them.
    is_parameter: bool = False

    @property
    def has_tokens(self) -> bool:
        """True if its size depends on the tokens."""
        return "t" in self.indices


class Candidate(NamedTuple):
    operation: int  # EXPAND, REDUCE or ACCUMULATE
    steps: float  # steps of the engine, and of loading B
    delay: float  # cycles for which the product waits for permutations of its operands
    # Operands. ACCUMULATE streams B from a bank; the others read it from the operand buffer.
    a: tuple[str, Arrangement]
    b: tuple[str, Arrangement]
    contracted: Sequence[str]  # the indices k of the product; for ACCUMULATE, m
    result: Arrangement  # arrangement of C


class Candidates:
    """The tensors of a phase of a layer, and the candidates of their products.

    `loaded`: name and arrangement of the tensors that the engine's operand buffer has.
    `targets`: required arrangements of final results.
    """

    def __init__(self, layer: TTLayer, loaded: Collection[Copy]):
        self.layer, self.loaded, self.sizes, self.costs = layer, set(loaded), layer.sizes, layer.costs
        self.targets: dict[str, Arrangement] = {}
        self.tensors: dict[str, Tensor] = {}

    def tensor_of(self, product: Product) -> Tensor:
        """Return the result of a product that is not computed yet."""
        return Tensor(product[0], frozenset(self.layer.indices[product[0]]), product=product)

    def _is_gradient_of_core(self, name: str) -> bool:
        return name not in self.layer.forward and name[1:] in self.layer.cores

    def choose(self, product: Product, operation: int | None = None, streamed: str = "") -> Candidate | None:
        """Return the cheapest candidate of a product, of an operation if one is given; None if there is none.

        `streamed`: a tensor that the candidate streams from the bank in which it is.
        """
        for candidate in self._sorted_candidates(self.tensor_of(product)):
            if streamed and (candidate.b[0] != streamed or not self._is_stored(*candidate.b)):
                continue
            if operation in (None, candidate.operation):
                return candidate
        return None

    def _is_stored(self, name: str, arrangement: Arrangement) -> bool:
        return any(arrangement in copy.views(self.sizes) for copy in self.tensors[name].copies)

    def matches_target(self, candidate: Candidate, name: str) -> bool:
        """Return True if a candidate's result has the arrangement that its target requires."""
        target = self.targets.get(name)
        return target is not None and target in candidate.result.views(self.sizes)

    def _sorted_candidates(self, tensor: Tensor, to: Arrangement | None = None, rows: str = "") -> list[Candidate]:
        """Return the candidates of a tensor's product, the cheapest first.

        `to`, `rows`: an arrangement that is to be reached from the result, by default the one that its next use
        prefers, and the index that counts rows if it is in an operand buffer.
        """
        result, left, right = tensor.product
        key = result, self._state(left), self._state(right), frozenset(self.loaded), result in self.targets
        known = self.layer.candidates
        if key not in known:  # layers of the same shape look up the same keys
            pairs = (left, right), (right, left)
            known[key] = [candidate for a, b in pairs for candidate in self._candidates(result, a, b)]
        costs = []
        for candidate in known[key]:
            of = candidate.result
            if to is None:
                last = self._permute_cost(result, of)
            else:
                last = 0.0 if to in of.views(self.costs) else self._rearrange_cost([of], to, rows)
            costs.append((candidate.steps + candidate.delay + last, candidate))
        return [candidate for cost, candidate in sorted(costs, key=lambda pair: pair[0]) if cost < math.inf]

    def _state(self, name: str) -> tuple:
        """Return what candidates depend on of an operand: its arrangements, or the state of its own operands."""
        tensor = self.tensors[name]
        return name, tuple(tensor.copies) or tuple(map(self._state, tensor.product[1:]))

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
        sizes, preferred = self.costs, self.layer.preferred.get(result, frozenset())
        for arrangement, permute_cost in self._suffixes(a, k):
            ks = arrangement.order[-len(k) :]
            ms = tuple(i for i in arrangement.order if i in m)
            # EXPAND: the last of k counts rows
            if arrangement.lanes == 1 and sizes[ks[-1]] <= MAX_RANK and elements(sizes, ks[:-1]) <= MAX_PASSES:
                order = (*sorted(n - preferred), *sorted(n & preferred))
                if b.is_parameter:  # parameters are loaded without a permutation
                    order = tuple(i for i in b.copies[0].order if i in n)
                for lanes in sorted({1, len(n & preferred) or 1, len(n)}):
                    to = self._outer(result, (*ms, *order[:-lanes]), order[-lanes:], lanes)
                    in_buffer = Arrangement((ks[-1], *ks[:-1], *order), lanes)
                    steps = expand_steps(sizes, ks, to) + self._buffer_cost(b, in_buffer)
                    delay = permute_cost + (elements(sizes, ks[:-1]) - 1) * PERMUTE_CYCLES
                    yield Candidate(M.EXPAND, steps, delay, (a.name, arrangement), (b.name, in_buffer), ks, to)
            # REDUCE: the last of n counts rows
            for last in sorted(n) if not a.is_parameter else ():
                fixed = sorted(n - {last})
                if sizes[last] <= MAX_RANK and elements(sizes, fixed) <= MAX_PASSES:
                    to = self._outer(result, (*ms, *fixed), (last,), 1)
                    in_buffer = Arrangement((last, *fixed, *ks), arrangement.lanes)
                    steps = reduce_steps(sizes, ms, in_buffer, fixed) + self._buffer_cost(b, in_buffer)
                    yield Candidate(M.REDUCE, steps, permute_cost, (a.name, arrangement), (b.name, in_buffer), ks, to)

    def _outer(self, result: str, outer: Sequence[str], packed: Sequence[str], lanes: int) -> Arrangement:
        """Return an arrangement with the outer indices in the order of the result's target, or of its preference."""
        target = self.targets.get(result)
        if target is not None:
            for view in target.views(self.costs):
                if view.packed == tuple(packed) and set(view.outer) == set(outer):
                    return view
        preferred = self.layer.preferred.get(result, frozenset())
        return Arrangement((*sorted(outer, key=preferred.__contains__), *packed), lanes)

    def _streamed_candidates(self, a: Tensor, b: Tensor, k, m, n) -> Iterator[Candidate]:
        """Yield candidates that stream B from a bank: ACCUMULATE."""
        sizes = self.costs
        for (scalars, cost_a), (stream, cost_b) in itertools.product(self._suffixes(a, m), self._suffixes(b, n)):
            ms, ns = scalars.order[-len(m) :], stream.order[-len(n) :]
            vectors = Arrangement(ns, stream.lanes).vectors(sizes)
            runs = elements(sizes, ms[: -scalars.lanes]) * -(-vectors // M.ACCUMULATORS)
            most = LANES if len(scalars.packed) > 1 else MAX_RANK
            if elements(sizes, scalars.packed) <= most and runs <= MAX_PASSES and self._is_summed(k, scalars, stream):
                rows = elements(sizes, scalars.packed)
                steps = accumulate_steps(sizes, k, runs, min(vectors, M.ACCUMULATORS), rows)
                to = Arrangement((*ms, *ns), stream.lanes)
                yield Candidate(M.ACCUMULATE, steps, cost_a + cost_b, (a.name, scalars), (b.name, stream), ms, to)

    def _is_summed(self, k: frozenset[str], scalars: Arrangement, stream: Arrangement) -> bool:
        """Return True if the loops of a sum leave one of an instruction's loops for the vectors of the result."""
        strides = {"scalars": scalars.strides(self.sizes), "stream": stream.strides(self.sizes)}
        loops = loops_of(self.sizes, strides, summed_indices(scalars, stream))
        return len(k) < M.LEVELS or len(fused(loops)) < M.LEVELS

    def _direct_operands(self, tensor: Tensor, arrangement: Arrangement) -> Iterator[tuple]:
        """Yield operands A and B of a product of cores, their common index, and a view of `arrangement`.

        From these EXPAND writes the product into the operand buffer directly.
        """
        rows = arrangement.order[0]
        pairs = () if tensor.copies or tensor.product is None else itertools.permutations(tensor.product[1:])
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

    # ---- costs ---------------------------------------------------------------------------------------------------

    def _arrangements(self, tensor: Tensor) -> list[Arrangement]:
        """Return the arrangements that a tensor has, or those of its candidates if it is not computed yet."""
        if tensor.copies:
            return tensor.copies
        return list(dict.fromkeys(candidate.result for candidate in self._sorted_candidates(tensor)))

    def _buffer_cost(self, tensor: Tensor, arrangement: Arrangement) -> float:
        """Return the cost of loading a tensor into the operand buffer, 0 if it is already there."""
        if (tensor.name, arrangement) in self.loaded:
            return 0.0
        if next(self._direct_operands(tensor, arrangement), None) is not None:  # EXPAND writes it there
            return float(arrangement.vectors(self.costs))
        if tensor.is_parameter:
            return float(arrangement.vectors(self.costs)) if self._is_stored(tensor.name, arrangement) else math.inf
        return self._load_cost(tensor, arrangement)[0]

    def _load_cost(self, tensor: Tensor, to: Arrangement) -> tuple[float, Arrangement | None]:
        """Return the least cost of loading a tensor, and the arrangement of the temporary copy for it, if any."""
        of, (rows, *outer) = self._arrangements(tensor), to.outer
        copies = to, Arrangement((*outer, rows, *to.packed), to.lanes)
        choices = [(self._rearrange_cost(of, to, rows), None)]
        choices += [(self._rearrange_cost(of, copy) + self._rearrange_cost([copy], to, rows), copy) for copy in copies]
        return min(choices, key=lambda choice: choice[0])

    def _rearrange_cost(self, of: Iterable[Arrangement], to: Arrangement, rows: str = "") -> float:
        steps = (rearranging_steps(self.costs, source, to, rows) for source in of)
        return min(steps, default=math.inf) + PERMUTE_CYCLES

    def _permute_cost(self, result: str, to: Arrangement) -> float:
        """Return the cost of permuting a result for its next use."""
        if result in self.targets:
            target = self.targets[result]
            if target in to.views(self.costs):
                return 0.0
            return math.inf if self._is_gradient_of_core(result) else self._rearrange_cost([to], target)
        preferred = self.layer.preferred.get(result)
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


def _ends_in(arrangement: Arrangement, last: frozenset[str]) -> bool:
    """Return True if an arrangement ends in these indices, in any order, and packs no others along the lanes."""
    return set(arrangement.order[len(arrangement.order) - len(last) :]) == set(last) and arrangement.lanes <= len(last)
