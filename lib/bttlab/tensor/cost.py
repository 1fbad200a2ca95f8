"""Cost of a contraction, from shapes alone: multiply-accumulates and intermediate memory, forward and backward.

Multiply-accumulates (MACs) are those of the matrix products; additions of a bias or of scattered gradients are not
counted. An *intermediate* is a result that is neither input, output, parameter nor gradient of one of these. It is
alive from the step that makes it to the last step of its pass that reads it; intermediates of the forward pass that the
backward pass reads again are kept, and alive when the backward pass starts. The peak of a pass is the largest number
of elements alive during one of its steps. Copies that only rearrange or select (a transposed gradient, the slices of a
core) are not counted.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bttlab.tensor.flows import FLOWS, Grouping
from bttlab.tensor.shapes import ShapeError, tt_shapes, ttm_shapes

Rank = int | Sequence[int]


@dataclass(frozen=True)
class Step:
    """One matrix product: its name ("result = left right"), MACs and the elements of its result."""

    name: str
    macs: int
    elements: int


@dataclass(frozen=True)
class PassCost:
    """The steps of one pass in order, and its peak of intermediate elements."""

    steps: tuple[Step, ...]
    peak_elements: int

    @property
    def macs(self) -> int:
        """Multiply-accumulates of all steps."""
        return sum(step.macs for step in self.steps)


@dataclass(frozen=True)
class Cost:
    """Forward and backward pass, and the elements of the forward pass's intermediates kept between them."""

    forward: PassCost
    backward: PassCost
    kept_elements: int

    @property
    def macs(self) -> int:
        """Multiply-accumulates of both passes."""
        return self.forward.macs + self.backward.macs


def flow_cost(flow: str, tokens: int, out_modes: Sequence[int], in_modes: Sequence[int], rank: Rank) -> Cost:
    """Return the cost of a TT linear layer in one of `bttlab.tensor.FLOWS` (arXiv 2501.06663).

    Parameters
    ----------
    flow : {"bidirectional", "right_to_left", "reconstruct"}
    tokens : int
    out_modes, in_modes : sequence of int
    rank : int or sequence of int
        Every internal rank, or all of them in order.

    Raises
    ------
    ShapeError
        If the flow is unknown, or tokens, modes or ranks are not allowed.
    """
    if flow not in FLOWS:
        raise ShapeError(f"flow is {flow!r}: choose one of {', '.join(FLOWS)}")
    _check_tokens(tokens)
    shapes = tt_shapes(out_modes, in_modes, rank)
    return {"bidirectional": _bidirectional, "right_to_left": _right_to_left, "reconstruct": _reconstruct}[flow](
        tokens, shapes[: len(out_modes)], shapes[len(out_modes) :]
    )


def grouped_cost(groups: Grouping, tokens: int, out_modes: Sequence[int], in_modes: Sequence[int], rank: Rank) -> Cost:
    """Return the cost of a TT linear layer in `bttlab.tensor.flows.grouped`.

    Parameters
    ----------
    groups : (tuple of int, tuple of int)
        How many neighbours each merge takes, of the output cores and of the input cores.
    tokens, out_modes, in_modes, rank
        As for `flow_cost`.

    Raises
    ------
    ShapeError
        If the groups do not make up the cores, or tokens, modes or ranks are not allowed.
    """
    if (sum(groups[0]), sum(groups[1])) != (len(out_modes), len(in_modes)) or min(*groups[0], *groups[1]) < 1:
        raise ShapeError(f"groups are {groups}: they must make up {len(out_modes)} and {len(in_modes)} cores")
    _check_tokens(tokens)
    shapes = tt_shapes(out_modes, in_modes, rank)
    return _grouped(groups, tokens, shapes[: len(out_modes)], shapes[len(out_modes) :])


def lookup_cost(tokens: int, row_modes: Sequence[int], column_modes: Sequence[int], rank: Rank) -> Cost:
    """Return the cost of looking `tokens` rows up in a TTM, each by itself (`bttlab.tensor.ttm.lookup`).

    Parameters and errors are as for `flow_cost`.
    """
    _check_tokens(tokens)
    shapes = ttm_shapes(row_modes, column_modes, rank)
    forward, backward = PassProducts({"y"}), PassProducts(set())
    columns = shapes[0][2]
    for k, (before, _, n, after) in enumerate(shapes[1:], 2):
        product = f"P{k}" if k < len(shapes) else "y"
        reads = (f"P{k - 1}" if k > 2 else "G1", f"G{k}")
        forward.add(product, reads, columns, before, n * after, batch=tokens)
        # dS: a slice's gradient belongs to one token, an intermediate until it is added up into its core's
        backward.add_first(
            (f"dS{k}", (reads[0], f"d{product}"), before, columns, n * after, tokens),
            (f"dP{k - 1}" if k > 2 else "dS1", (f"d{product}", f"G{k}"), columns, n * after, before, tokens),
        )
        columns *= n
    return _cost(forward, backward)


def optimal_cost(
    tokens: int, out_modes: Sequence[int], in_modes: Sequence[int], rank: Rank, search: str = "dp"
) -> PassCost:
    """Return the cost of the best order of pairwise contractions of x with the cores, as opt_einsum finds it.

    Forward pass only.

    Parameters
    ----------
    tokens, out_modes, in_modes, rank
        As for `flow_cost`, and so are errors.
    search : {"dp", "optimal"}
        "dp": dynamic programming over all orders without outer products; "optimal": exhaustive over all orders, for
        up to some ten cores.

    References
    ----------
    D. G. A. Smith and J. Gray, "opt_einsum", J. Open Source Software 3(26), 2018.
    """
    import opt_einsum  # here: training needs none of it

    _check_tokens(tokens)
    shapes = tt_shapes(out_modes, in_modes, rank)
    names = [opt_einsum.get_symbol(k) for k in range(2 * len(shapes))]
    token, modes, bonds = names[0], names[1 : len(shapes) + 1], ["", *names[len(shapes) + 1 :], ""]  # outer bonds: none
    terms = [token + "".join(modes[len(out_modes) :]), *(bonds[k] + n + bonds[k + 1] for k, n in enumerate(modes))]
    sizes = {token: tokens} | {n: shape[1] for n, shape in zip(modes, shapes, strict=True)}
    sizes |= {bond: shape[2] for bond, shape in zip(bonds[1:-1], shapes, strict=False)}
    output = token + "".join(modes[: len(out_modes)])
    operands = [tuple(sizes[index] for index in term) for term in terms]
    path, _ = opt_einsum.contract_path(f"{','.join(terms)}->{output}", *operands, shapes=True, optimize=search)

    network = PassProducts({"y"})
    remaining = [("x" if k == 0 else f"G{k}", set(term)) for k, term in enumerate(terms)]
    for number, pair in enumerate(path, 1):
        (right, b), (left, a) = (remaining.pop(position) for position in sorted(pair, reverse=True))
        summed = (a & b) - set(output)
        result = (a | b) - summed
        name = f"T{number}" if remaining else "y"
        network.add(name, (left, right), _size(result, sizes), _size(summed, sizes), 1)
        remaining.append((name, result))
    return network.cost({})


class PassProducts:
    """Collects the matrix products of one pass; `external` are results that are no intermediates."""

    def __init__(self, external: set[str]):
        self.external = external
        self.products: list[tuple[str, tuple[str, ...], Step]] = []

    def add(self, result: str, reads: tuple[str, str], rows: int, inner: int, columns: int, batch: int = 1) -> None:
        self.products.append(_product(result, reads, rows, inner, columns, batch))

    def add_first(self, *products: tuple) -> None:
        """Put products before those already there: a backward pass is written along the forward one."""
        self.products[:0] = [_product(*product) for product in products]

    def intermediates(self) -> dict[str, int]:
        return {result: step.elements for result, _, step in self.products if result not in self.external}

    def reads(self) -> set[str]:
        return {name for _, reads, _ in self.products for name in reads}

    def cost(self, kept: dict[str, int]) -> PassCost:
        alive = dict(kept)
        sizes = self.intermediates()
        last_read = {name: k for k, (_, reads, _) in enumerate(self.products) for name in reads}
        peak = sum(alive.values())
        for k, (result, _, _) in enumerate(self.products):
            if result in sizes:
                alive[result] = sizes[result]
            peak = max(peak, sum(alive.values()))
            alive = {name: size for name, size in alive.items() if last_read.get(name, -1) > k}
        return PassCost(tuple(step for _, _, step in self.products), peak)


def _product(result: str, reads: tuple[str, str], rows: int, inner: int, columns: int, batch: int = 1) -> tuple:
    step = Step(f"{result} = {' '.join(reads)}", batch * rows * inner * columns, batch * rows * columns)
    return result, reads, step


def _cost(forward: PassProducts, backward: PassProducts) -> Cost:
    kept = {name: size for name, size in forward.intermediates().items() if name in backward.reads()}
    return Cost(forward.cost({}), backward.cost(kept), sum(kept.values()))


def _merge_left(first: int, shapes: list) -> tuple[list[tuple], list[tuple], str]:
    """Return the products that merge neighbouring cores from the left, forward and backward, and the result's name.

    The cores are G<first> and those after it. One core alone is the result itself, and its gradient the core's.
    """
    forward, backward = [], []
    merged, size = f"G{first}", shapes[0][0] * shapes[0][1]
    for k, (before, n, after) in enumerate(shapes[1:], first + 1):
        result = f"L{k}"
        forward.append((result, (merged, f"G{k}"), size, before, n * after))
        backward[:0] = [
            (f"dG{k}", (merged, f"d{result}"), before, size, n * after),
            (f"d{merged}", (f"d{result}", f"G{k}"), size, n * after, before),
        ]
        merged, size = result, size * n
    return forward, backward, merged


def _merge_right(first: int, shapes: list) -> tuple[list[tuple], list[tuple], str]:
    """Return the same for merging from the right."""
    forward, backward = [], []
    merged, size = f"G{first + len(shapes) - 1}", shapes[-1][1] * shapes[-1][2]
    for k in range(first + len(shapes) - 2, first - 1, -1):
        before, n, after = shapes[k - first]
        result = f"R{k}"
        forward.append((result, (f"G{k}", merged), before * n, after, size))
        backward[:0] = [
            (f"dG{k}", (f"d{result}", merged), before * n, size, after),
            (f"d{merged}", (f"G{k}", f"d{result}"), after, before * n, size),
        ]
        merged, size = result, size * n
    return forward, backward, merged


def _two_passes(out_shapes: list, in_shapes: list) -> tuple[PassProducts, PassProducts]:
    count = len(out_shapes) + len(in_shapes)
    return PassProducts({"y"}), PassProducts({"dx", *(f"dG{k}" for k in range(1, count + 1))})


def _bidirectional(tokens: int, out_shapes: list, in_shapes: list) -> Cost:
    forward, backward = _two_passes(out_shapes, in_shapes)
    left_merges, left_unmerges, left = _merge_left(1, out_shapes)
    right_merges, right_unmerges, right = _merge_right(len(out_shapes) + 1, in_shapes)
    outs, ins, rank = _features(out_shapes), _features(in_shapes), in_shapes[0][0]
    for product in [
        *left_merges,
        *right_merges,
        ("z", ("x", right), tokens, ins, rank),
        ("y", ("z", left), tokens, rank, outs),
    ]:
        forward.add(*product)
    for product in [
        ("dz", ("dy", left), tokens, outs, rank),
        ("dx", ("dz", right), tokens, rank, ins),
        (f"d{left}", ("dy", "z"), outs, tokens, rank),
        *left_unmerges,
        (f"d{right}", ("dz", "x"), rank, tokens, ins),
        *right_unmerges,
    ]:
        backward.add(*product)
    return _cost(forward, backward)


def _reconstruct(tokens: int, out_shapes: list, in_shapes: list) -> Cost:
    forward, backward = _two_passes(out_shapes, in_shapes)
    left_merges, left_unmerges, left = _merge_left(1, out_shapes)
    right_merges, right_unmerges, right = _merge_right(len(out_shapes) + 1, in_shapes)
    outs, ins, rank = _features(out_shapes), _features(in_shapes), in_shapes[0][0]
    for product in [
        *left_merges,
        *right_merges,
        ("W", (left, right), outs, rank, ins),
        ("y", ("x", "W"), tokens, ins, outs),
    ]:
        forward.add(*product)
    for product in [
        ("dx", ("dy", "W"), tokens, outs, ins),
        ("dW", ("dy", "x"), outs, tokens, ins),
        (f"d{left}", ("dW", right), outs, ins, rank),
        (f"d{right}", (left, "dW"), rank, outs, ins),
        *left_unmerges,
        *right_unmerges,
    ]:
        backward.add(*product)
    return _cost(forward, backward)


def _right_to_left(tokens: int, out_shapes: list, in_shapes: list) -> Cost:
    return _grouped(((1,) * len(out_shapes), (1,) * len(in_shapes)), tokens, out_shapes, in_shapes)


def _grouped(groups: Grouping, tokens: int, out_shapes: list, in_shapes: list) -> Cost:
    forward, backward = _two_passes(out_shapes, in_shapes)
    shapes, merged, unmerges, first = out_shapes + in_shapes, [], [], 1
    for number, size in enumerate((*groups[0], *groups[1])):
        merge = _merge_left if number < len(groups[0]) else _merge_right
        group = shapes[first - 1 : first - 1 + size]
        products, back, name = merge(first, group)
        for product in products:
            forward.add(*product)
        unmerges += back
        merged.append((name, (group[0][0], _features(group), group[-1][2])))
        first += size

    read, size = "x", tokens * _features(in_shapes)
    for k in range(len(merged) - 1, -1, -1):
        name, (before, n, after) = merged[k]
        result = f"A{k + 1}" if k else "y"
        if k >= len(groups[0]):  # an input mode disappears
            rows = size // (n * after)
            forward.add(result, (read, name), rows, n * after, before)
            size = rows * before
            gradients = (before, rows, n * after), (rows, before, n * after)
        else:  # an output mode appears
            columns = size // after
            forward.add(result, (name, read), before * n, after, columns)
            size = before * n * columns
            gradients = (before * n, columns, after), (after, before * n, columns)
        backward.add_first(
            (f"d{name}", (f"d{result}", read), *gradients[0]), (f"d{read}", (f"d{result}", name), *gradients[1])
        )
        read = result
    for product in unmerges:
        backward.add(*product)
    return _cost(forward, backward)


def _features(shapes: list) -> int:
    return math.prod(shape[1] for shape in shapes)


def _size(indices: set[str], sizes: dict[str, int]) -> int:
    return math.prod(sizes[index] for index in indices)


def _check_tokens(tokens: int) -> None:
    if tokens < 1:
        raise ShapeError(f"tokens is {tokens}: it must be at least 1")
