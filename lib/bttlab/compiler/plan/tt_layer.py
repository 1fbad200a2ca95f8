"""A linear layer in tensor-train format: its order of contraction, and its products on each engine.

W[i1 i2 i3, j1 j2 j3] = G1[i1] G2[i2] G3[i3] G4[j1] G5[j2] G6[j3], and y = x W^T + b. An order (`bttlab.tensor.Order`)
defines which cores are merged and in which sequence the tokens are contracted with them; the backward pass follows by
the product rule. In the paper's bi-directional flow (BTT, arXiv 2501.06663, section III) all cores of each end are
merged, into L and R, independently of the tokens; then z = x R^T and y = z L^T + b.

The layer is divided at z, the intermediate with the fewest features a token: one engine computes the products before z,
the other those after it.
"""

from collections.abc import Iterator
from functools import lru_cache

from bttlab.compiler.buffers import INNER
from bttlab.compiler.builder import LANES, MAX_RANK, ROWS
from bttlab.compiler.errors import DoesNotFit, ProgramError
from bttlab.compiler.instruction import Bound, Register, max_of
from bttlab.compiler.machine import M
from bttlab.compiler.memory.layout import IN_AXES, OUT_AXES
from bttlab.compiler.plan.arrangement import Arrangement, Sizes, elements
from bttlab.model.choices import TYPICAL_TOKENS
from bttlab.tensor.order import Order, Product, indices_of_product, order_of_groups

IN, OUT = 0, 1  # phases of a layer: before z, and after it
# Cores that are merged at the input's end and at the output's, before the tokens are contracted with them. The forward
# pass of "mixed" merges all: its path from x to y is shorter, and its backward pass has less to do than the paper's.
MERGED = {"bidirectional": (3, 3), "right_to_left": (1, 1), "mixed": (2, 3)}
Flow = str | tuple[int, int] | Order  # a key of MERGED, such a pair, or the order of contraction


def axes_of(count: int) -> list[tuple[int, ...]]:
    """Return the order of each core's axes in the banks, for a tensor train with `count` cores at each end."""
    kinds = ("near", "middle", "middle", "far") if count == 4 else ("near", "middle", "far")[-count:]
    return [*(OUT_AXES[kind] for kind in kinds[::-1]), *(IN_AXES[kind] for kind in kinds)]


def _merges(flow: Flow) -> tuple[int, int]:
    """Return how many cores a flow merges at the input's end and at the output's."""
    merged = MERGED.get(flow, flow)
    if not (isinstance(merged, tuple) and len(merged) == 2 and set(merged) <= {1, 2, 3}):
        raise ProgramError(
            f"flow is {flow!r}: choose {', '.join(MERGED)}, auto, or how many cores are merged at each end, (1..3, "
            "1..3)"
        )
    return merged


def order_of_merges(cores: int, merged: tuple[int, int]) -> Order:
    """Return the order of contraction that first merges cores at each end.

    `merged`: cores that are merged at the input's end and at the output's, counted for three cores at each end: a layer
    with two there merges at most two, a layer with four one more.
    """
    count = cores // 2
    ins, outs = (min(m, 2) if count == 2 else m + count - 3 for m in merged)
    return order_of_groups(((outs, *(1,) * (count - outs)), (*(1,) * (count - ins), ins)))


@lru_cache(maxsize=256)
def _shared_sizes(sizes: tuple[tuple[str, int], ...], tokens: Bound) -> Sizes:
    """Return the `Sizes` that layers of one shape share, so that they share its cache of shuffle plans."""
    return Sizes(dict(sizes), {"t": tokens} if isinstance(tokens, Register) else {})


@lru_cache(maxsize=1024)
def _shared_candidates(order: Order, shapes: tuple, tokens: Bound) -> dict:
    """Return the cache of candidates of products that layers of one order and shape share."""
    return {}


@lru_cache(maxsize=1024)
def _shared_plans(order: Order, shapes: tuple, tokens: Bound, is_direct: bool) -> dict:
    """Return the cache of plans that layers of one order and shape share (`contraction`)."""
    return {}


@lru_cache(maxsize=256)
def _backward_products(order: Order, sizes: tuple[tuple[str, int], ...]) -> list[Product]:
    """Return the backward products with the lower peak memory."""
    backward = order.backward(True, as_flow=True), order.backward(False)
    return min(backward, key=lambda of: order.cost(dict(sizes), of).backward.peak_elements)


class TTLayer:
    """The order of contraction of a linear layer, and its products on each engine.

    `shapes`: those of the cores.
    `engines`: the engine of the products before z, and of those after it.
    `sizes`: largest size of each index, and its bound.
    `costs`: sizes for which the cheapest candidate of a product is chosen.
    `cores`: arrangement of each core in the banks.
    `forward`: the tensors of the forward pass; the gradient of each has a "d" before its name.
    `steps`: the products before z, and those after it.
    `keepable`: the intermediate of the tokens between x and z, if there is exactly one: it may be kept for the backward
    pass.
    `direct`: a product of cores, and z from x and its result, which the forward pass of "mixed" computes in place of z
    through the intermediate; empty unless there is exactly one.
    `preferred`: for each tensor, the indices that its next use reads along the lanes.
    """

    def __init__(self, name: str, tokens: Bound, shapes: tuple[tuple[int, ...], ...], flow: Flow, number: int):
        """Divide the products of a layer; raise ProgramError if the engines cannot compute it.

        `number`: of the layer in the model: where the two ends take different work, the engines swap ends from layer to
        layer to balance the load.
        """
        self.name, self.tokens, self.shapes = name, tokens, shapes
        if len(shapes) not in (4, 6, 8):
            rule = "the card takes two, three or four modes at each end, the same number at both"
            raise ProgramError(f"{name} has {len(shapes)} cores: {rule}")
        if (highest := max(shape[2] for shape in shapes)) > MAX_RANK:
            what = f"{name} has rank {highest}; an engine takes up to {MAX_RANK}, {ROWS} in a pass"
            raise DoesNotFit(what, f"ranks up to {MAX_RANK}")
        swap = 0
        if isinstance(flow, Order):
            self.order = flow
        else:
            merged = _merges(flow)
            self.order, swap = order_of_merges(len(shapes), merged), number % 2 if merged[IN] != merged[OUT] else 0
        if (self.order.outputs, self.order.inputs) != (len(shapes) // 2,) * 2:
            rule = f"the order has {self.order.outputs} and {self.order.inputs} at the ends"
            raise ProgramError(f"{name} has {len(shapes) // 2} cores at each end, {rule}: give one with as many")
        self.engines = swap, 1 - swap
        outs = self.order.outputs
        modes = [shape[1] for shape in self.shapes]
        ranks = [shape[2] for shape in self.shapes[:-1]]
        sizes = self.order.sizes(1, modes[:outs], modes[outs:], ranks)
        most = max_of(self.tokens)
        self.sizes = _shared_sizes(tuple((sizes | {"t": most}).items()), self.tokens)
        typical = min(TYPICAL_TOKENS, most)  # the cheapest candidate of a product is chosen for these
        bound = Register(0, 0, typical, typical) if isinstance(self.tokens, Register) else typical
        self.costs = _shared_sizes(tuple((sizes | {"t": typical}).items()), bound)
        self.candidates = _shared_candidates(self.order, self.shapes, self.tokens)
        self.plans = _shared_plans(self.order, self.shapes, self.tokens, flow == "mixed")
        self.indices = self.order.indices()
        self.cores = {
            f"G{k}": Arrangement(tuple(i for i in (of[axis] for axis in axes) if i), 1)
            for k, (axes, of) in enumerate(zip(axes_of(outs), self._bonds(), strict=True), 1)
        }
        self.forward = frozenset(self.indices)
        self.indices |= {f"d{name}": of for name, of in self.indices.items()}
        self._cut(is_direct=flow == "mixed")
        self.preferred = self._preferred_lanes()

    def _preferred_lanes(self) -> dict[str, frozenset[str]]:
        preferred: dict[str, frozenset[str]] = {}
        forward = [*self.steps[IN], *self.steps[OUT], *self.direct]
        for number, (_, left, right) in enumerate([*forward, *self.backward_products]):
            is_forward = number < len(forward)
            shared = set(self.indices[left]) & set(self.indices[right])
            for name, partner in ((left, right), (right, left)):
                indices = frozenset(self.indices[name])
                is_kept = is_forward and "t" not in indices and elements(self.costs, shared) <= MAX_RANK
                if not is_forward and partner in self.cores:
                    # A core is loaded unpermuted, with its outermost index as rows; else both tensors are streamed.
                    is_kept = self.cores[partner].order[0] in shared and len(shared) > 1
                preferred.setdefault(name, indices - shared if is_kept or "t" in shared else indices & shared)
        return preferred

    def _bonds(self) -> Iterator[tuple[str, str, str]]:
        """Yield the indices of each core: rank, mode, rank. The rank is empty at either end of the train."""
        outs, cores = self.order.outputs, len(self.shapes)
        for k in range(1, cores + 1):
            mode = f"i{k}" if k <= outs else f"j{k - outs}"
            yield f"r{k - 1}" if k > 1 else "", mode, f"r{k}" if k < cores else ""

    def _cut(self, is_direct: bool) -> None:
        """Find z, divide the forward products there, and choose the backward products with the lower peak memory."""
        made = {step[0]: step for step in self.order.steps}
        for step in self.order.steps:
            self._check(step)
        chain = [step for step in self.order.steps if "t" in self.indices[step[0]]]
        if len(chain) < 2:
            raise ProgramError(
                f"{self.name}: the order reconstructs W; contract the tokens with the cores of one end first"
            )
        place = min(range(len(chain) - 1), key=lambda n: elements(self.costs, self.indices[chain[n][0]]))
        self.z = chain[place][0]
        needed: list[set[str]] = [set(), set()]

        def need(name: str, phase: int) -> None:
            if name in made and name not in needed[phase]:
                needed[phase].add(name)
                for operand in made[name][1:]:
                    if "t" not in self.indices[operand]:
                        need(operand, phase)

        for n, step in enumerate(chain):
            need(step[0], int(n > place))
        steps = [tuple(step for step in self.order.steps if step[0] in needed[phase]) for phase in (IN, OUT)]
        self.steps: list[tuple[Product, ...]] = steps
        self.phase = {operand: phase for phase in (IN, OUT) for step in steps[phase] for operand in step[1:]}
        self.backward_products = _backward_products(self.order, tuple(self.sizes.items()))
        self.keepable = [step[0] for step in chain[:place]] if place == 1 else []
        self.direct: list[Product] = []
        if is_direct and place == 1:
            (_, x, merged), (z, _, core) = chain[:2]
            name = f"{core}{merged}"
            self.direct = [(name, core, merged), (z, x, name)]
            self.indices[name] = indices_of_product(self.indices[core], self.indices[merged])

    def _check(self, step: Product) -> None:
        """Check that a product leaves indices for the sum, an engine's rows and its lanes, and that its result fits."""
        result, left, right = step
        text = f"'{result} = {left} {right}'"
        shared = set(self.indices[left]) & set(self.indices[right])
        if not shared:
            raise ProgramError(f"{text}: {left} and {right} share no index; an engine multiplies neighbours only")
        for name in (left, right):
            if set(self.indices[name]) == shared:
                raise ProgramError(
                    f"{text} sums over all indices of {name} at once and leaves none for an engine's rows: contract "
                    f"{name} earlier"
                )
        vectors = elements(self.sizes, self.indices[result]) // LANES
        most = max(M.banks[bank].depth for bank in INNER)
        if vectors > most:
            raise ProgramError(
                f"{text}: {result} takes {vectors:,} vectors, a bank for intermediates has {most:,}: choose an order "
                "whose intermediates are smaller"
            )

    def of_tokens(self, phase: int) -> list[Product]:
        """Return the products of a phase whose results depend on the tokens."""
        return [step for step in self.steps[phase] if "t" in self.indices[step[0]]]

    def phase_of(self, product: Product) -> int:
        return self.phase[product[0].removeprefix("d")]

    @property
    def merges(self) -> list[Product]:
        """The products of cores."""
        return [step for step in self.order.steps if "t" not in self.indices[step[0]]]

    def has_tokens(self, product: Product) -> bool:
        """Return True if an operand of a product depends on the tokens."""
        return any("t" in self.indices[name] for name in product[1:])

    def features(self, name: str) -> Arrangement:
        """Return the arrangement of x or y: row by row, a row for each token."""
        modes = [i for i in self.indices[name.removeprefix("d")] if i != "t"]
        return Arrangement(("t", *modes), len(modes))

    @property
    def z_arrangement(self) -> Arrangement:
        rest = sorted((i for i in self.indices[self.z] if i != "t"), key=lambda index: index[0] == "r")
        return Arrangement(("t", *rest), 1)

    @property
    def has_one(self) -> bool:
        """True if z has an extra element of 1, so that the gradient of the bias is a row of a core's gradient."""
        tokens = self.of_tokens(OUT)
        ranks = [i for i in self.indices[self.z] if i != "t"]
        return len(tokens) == len(ranks) == 1 and self.sizes[ranks[0]] < ROWS
