"""Contraction paths of a TT linear layer as steps, with the backward pass derived from them; and costs of paths.

A step multiplies two tensors and sums over their common indices: "z = x R4". The forward pass begins with x and the
cores G1, G2, ... and ends with y. Each product C = A B has two gradients, dA = dC B and dB = A dC (the product rule).
The forward pass therefore determines the backward pass.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from bttlab.tensor.cost import Cost, PassCost, PassProducts, Rank, check_tokens, cost_of
from bttlab.tensor.flows import FLOWS, Grouping
from bttlab.tensor.shapes import ShapeError, tt_shapes

Product = tuple[str, str, str]  # result, left, right
_STEP = re.compile(r"([A-Za-z]\w*)\s*=\s*([A-Za-z]\w*)\s+([A-Za-z]\w*)")


@dataclass(frozen=True)
class Order:
    """An order of contraction of a TT linear layer's forward pass.

    Parameters
    ----------
    steps : tuple of tuple of str
        Names (result, left, right) of each product; the last result is y.
    outputs, inputs : int
        Number of output cores, and of input cores.
    """

    steps: tuple[Product, ...]
    outputs: int = 3
    inputs: int = 3

    def __post_init__(self) -> None:
        cores = [f"G{k}" for k in range(1, self.outputs + self.inputs + 1)]
        remaining, known = ["x", *cores], {"x", *cores}
        for number, (result, left, right) in enumerate(self.steps, 1):
            text = f"step {number}, '{result} = {left} {right}'"
            for name in (left, right):
                if name not in known:
                    raise ShapeError(f"{text}: there is no {name} yet; there are {', '.join(remaining)}")
                if name not in remaining:
                    raise ShapeError(f"{text}: an earlier product used {name}; there are {', '.join(remaining)}")
            if left == right:
                raise ShapeError(f"{text}: a tensor is not multiplied by itself; there are {', '.join(remaining)}")
            if result in known or result in {f"d{name}" for name in known} or f"d{result}" in known:
                raise ShapeError(f"{text}: the name {result} is in use; gradients are called d..., choose another")
            remaining = [name for name in remaining if name not in (left, right)] + [result]
            known.add(result)
        if remaining != ["y"]:
            unused = ", ".join(name for name in remaining if name != "y")
            raise ShapeError(
                f"the order does not use {unused}: every core is part of one product, and the last product is called y"
            )

    @classmethod
    def of(cls, text: "str | Sequence[str] | Order", outputs: int = 3, inputs: int = 3) -> "Order":
        """Return the order with the steps in some lines, one in each line, such as "z = x R4".

        Raises ShapeError if a line is not a step, or the steps are not a valid order; the message names the fault.
        """
        if isinstance(text, Order):
            return text
        lines = text.splitlines() if isinstance(text, str) else list(text)
        steps = []
        for line in (line.split("#")[0].strip() for line in lines):
            if line:
                match = _STEP.fullmatch(line)
                if match is None:
                    raise ShapeError(f"{line!r} is not a step: write 'result = left right', such as 'z = x R4'")
                steps.append((match[1], match[2], match[3]))
        return cls(tuple(steps), outputs, inputs)

    def __str__(self) -> str:
        """Return the steps, one in each line."""
        return "\n".join(f"{result} = {left} {right}" for result, left, right in self.steps)

    def indices(self) -> dict[str, tuple[str, ...]]:
        """Return the indices of every tensor: t (tokens), i1, i2, ... and j1, j2, ... (modes), r1, r2, ... (ranks).

        A gradient has the indices of its tensor.
        """
        indices = _train_indices(self.outputs, self.inputs)
        for result, left, right in self.steps[:-1]:
            indices[result] = indices_of_product(indices[left], indices[right])
        return indices

    @staticmethod
    def sizes(tokens: int, out_modes: Sequence[int], in_modes: Sequence[int], rank: Rank) -> dict[str, int]:
        """Return the size of every index.

        Raises ShapeError if tokens, modes or ranks are not allowed.
        """
        check_tokens(tokens)
        shapes = tt_shapes(out_modes, in_modes, rank)
        names = [f"i{k}" for k in range(1, len(out_modes) + 1)] + [f"j{k}" for k in range(1, len(in_modes) + 1)]
        sizes = {"t": tokens} | {name: shape[1] for name, shape in zip(names, shapes, strict=True)}
        return sizes | {f"r{k}": shape[2] for k, shape in enumerate(shapes[:-1], 1)}

    def backward(self, chain_first: bool, as_flow: bool = False) -> tuple[Product, ...]:
        """Return the products of the backward pass.

        With `chain_first` the gradients on the path from y to x come before all others; else both gradients of each
        product on that path come one after the other. `as_flow` gives the order of `bttlab.tensor.flows`: the gradients
        of merged cores come after those that depend on tokens, and for output cores the last one comes first.
        """
        indices, made = self.indices(), {step[0]: step for step in self.steps}
        chain: list[Product] = []
        others: list[Product] = []
        merges: list[Product] = []

        def gradients(step: Product) -> list[Product]:
            result, left, right = step
            return [(f"d{left}", f"d{result}", right), (f"d{right}", left, f"d{result}")]

        def unmerge(name: str, into: list[Product]) -> None:
            if name in made:
                both = gradients(made[name])
                of_outputs = all(index[0] != "j" for index in indices[name])
                into += both[::-1] if as_flow and of_outputs else both
                for operand in made[name][1:]:
                    unmerge(operand, into)

        name = "y"
        while name in made:
            token_sized, other = sorted(
                zip(made[name][1:], gradients(made[name]), strict=True), key=lambda p: "t" not in indices[p[0]]
            )
            (others if chain_first else chain).append(other[1])
            chain.append(token_sized[1])
            unmerge(other[0], others if chain_first else merges if as_flow else chain)
            name = token_sized[0]
        return tuple(chain + others + merges)

    def passes(self, sizes: Mapping[str, int]) -> tuple[Cost, tuple[Product, ...]]:
        """Return the cost of both passes and the products of the backward pass, in the order with the smaller peak."""
        both = [(self.cost(sizes, self.backward(first)), self.backward(first)) for first in (True, False)]
        return min(both, key=lambda result: result[0].backward.peak_elements)

    def cost(self, sizes: Mapping[str, int], backward: Sequence[Product]) -> Cost:
        """Return the cost of both passes from the sizes of the indices and the products of the backward pass."""
        indices = self.indices()
        indices |= {f"d{name}": of for name, of in indices.items()}
        cores = {f"dG{k}" for k in range(1, self.outputs + self.inputs + 1)}
        passes = PassProducts({"y"}), PassProducts({"dx", *cores})
        for products, into in ((self.steps, passes[0]), (backward, passes[1])):
            for result, left, right in products:
                a, b, c = (set(indices[name]) for name in (left, right, result))
                rows, inner, columns = (math.prod(sizes[i] for i in of) for of in (a & c, a & b, b & c))
                into.add(result, (left, right), rows, inner, columns)
        return cost_of(*passes)


def indices_of_product(left: tuple[str, ...], right: tuple[str, ...]) -> tuple[str, ...]:
    """Return the indices of the product of two tensors: those that only one of them has."""
    return tuple(index for index in left + right if (index in left) != (index in right))


def _train_indices(outputs: int, inputs: int) -> dict[str, tuple[str, ...]]:
    """Return the indices of x, y and the cores."""
    modes = [f"i{k}" for k in range(1, outputs + 1)] + [f"j{k}" for k in range(1, inputs + 1)]
    bonds = ["", *(f"r{k}" for k in range(1, len(modes))), ""]
    cores = {
        f"G{k + 1}": tuple(index for index in (bonds[k], mode, bonds[k + 1]) if index) for k, mode in enumerate(modes)
    }
    return {"x": ("t", *modes[outputs:]), "y": ("t", *modes[:outputs]), **cores}


def order_cost(
    order: "Order | str | Sequence[str]", tokens: int, out_modes: Sequence[int], in_modes: Sequence[int], rank: Rank
) -> Cost:
    """Return the cost of a custom contraction path, with the order of its backward pass that has the smaller peak.

    Parameters
    ----------
    order : Order, str or sequence of str
        The path, or its steps, such as "z = x R4", one per line.
    tokens : int
        Number of rows of x, at least 1.
    out_modes, in_modes : sequence of int
        Factorisations of the numbers of output and input features.
    rank : int or sequence of int
        Every internal rank, or all of them in order.

    Returns
    -------
    Cost
        Multiply-accumulates and intermediate elements, forward and backward.

    Raises
    ------
    ShapeError
        If the steps are not a valid path, or tokens, modes or ranks are not allowed.
    """
    order = Order.of(order, len(out_modes), len(in_modes))
    return order.passes(order.sizes(tokens, out_modes, in_modes, rank))[0]


def flow_cost(flow: str, tokens: int, out_modes: Sequence[int], in_modes: Sequence[int], rank: Rank) -> Cost:
    """Return the cost of a TT linear layer in one of `bttlab.tensor.FLOWS` (arXiv 2501.06663).

    Parameters
    ----------
    flow : {"right_to_left", "bidirectional", "reconstruct"}
        Order of contraction.
    tokens : int
        Number of rows of x, at least 1.
    out_modes, in_modes : sequence of int
        Factorisations of the numbers of output and input features.
    rank : int or sequence of int
        Every internal rank, or all of them in order.

    Returns
    -------
    Cost
        Multiply-accumulates and intermediate elements, forward and backward.

    Raises
    ------
    ShapeError
        If the flow is unknown, or tokens, modes or ranks are not allowed.
    """
    if flow not in FLOWS:
        raise ShapeError(f"flow is {flow!r}: choose one of {', '.join(FLOWS)}")
    outs, ins = len(out_modes), len(in_modes)
    if flow == "right_to_left":
        return grouped_cost(((1,) * outs, (1,) * ins), tokens, out_modes, in_modes, rank)
    sizes = Order.sizes(tokens, out_modes, in_modes, rank)
    (lefts, left), (rights, right) = merged_cores(1, outs, True), merged_cores(outs + 1, ins, False)
    last = {
        "bidirectional": [("z", "x", right), ("y", "z", left)],
        "reconstruct": [("W", left, right), ("y", "x", "W")],
    }
    order = Order((*lefts, *rights, *last[flow]), outs, ins)
    return order.cost(sizes, order.backward(True, as_flow=True))


def grouped_cost(groups: Grouping, tokens: int, out_modes: Sequence[int], in_modes: Sequence[int], rank: Rank) -> Cost:
    """Return the cost of a TT linear layer in the flow of `bttlab.tensor.grouped`.

    Parameters
    ----------
    groups : tuple of two tuples of int
        Number of neighbouring cores in each merge, for the output cores and the input cores.
    tokens : int
        Number of rows of x, at least 1.
    out_modes, in_modes : sequence of int
        Factorisations of the numbers of output and input features.
    rank : int or sequence of int
        Every internal rank, or all of them in order.

    Returns
    -------
    Cost
        Multiply-accumulates and intermediate elements, forward and backward.

    Raises
    ------
    ShapeError
        If the groups do not add up to the cores, or tokens, modes or ranks are not allowed.
    """
    if (sum(groups[0]), sum(groups[1])) != (len(out_modes), len(in_modes)) or min(*groups[0], *groups[1]) < 1:
        raise ShapeError(f"groups are {groups}: they must add up to {len(out_modes)} and {len(in_modes)} cores")
    sizes, order = Order.sizes(tokens, out_modes, in_modes, rank), order_of_groups(groups)
    return order.cost(sizes, order.backward(False, as_flow=True))


def order_of_groups(groups: Grouping) -> Order:
    """Return the order that merges the cores of each group and contracts x with them, from right to left.

    `groups` are as for `bttlab.tensor.flows.grouped`. What x and the inputs' cores give is called z.
    """
    steps, merged, outs, first = [], [], sum(groups[0]), 1
    for size in (*groups[0], *groups[1]):
        products, name = merged_cores(first, size, from_left=first <= outs)
        steps += products
        merged.append((first, name))
        first += size
    read = "x"
    for first, name in reversed(merged):
        result = {1: "y", outs + 1: "z"}.get(first, f"A{first}")
        steps.append((result, read, name) if first > outs else (result, name, read))
        read = result
    return Order(tuple(steps), outs, sum(groups[1]))


def merged_cores(first: int, count: int, from_left: bool) -> tuple[list[Product], str]:
    """Return the products that merge `count` cores from G<first> on, and the name of the result."""
    steps, rest = [], [*range(first, first + count)]
    merged = f"G{rest.pop(0 if from_left else -1)}"
    for k in rest if from_left else rest[::-1]:
        steps.append((f"L{k}", merged, f"G{k}") if from_left else (f"R{k}", f"G{k}", merged))
        merged = steps[-1][0]
    return steps, merged


def optimal_cost(
    tokens: int, out_modes: Sequence[int], in_modes: Sequence[int], rank: Rank, search: str = "dp"
) -> PassCost:
    """Return the cost of the best order of pairwise contractions that opt_einsum finds, for the forward pass only.

    Parameters
    ----------
    tokens : int
        Number of rows of x, at least 1.
    out_modes, in_modes : sequence of int
        Factorisations of the numbers of output and input features.
    rank : int or sequence of int
        Every internal rank, or all of them in order.
    search : {"dp", "optimal"}
        Dynamic programming over all orders without outer products, or exhaustive search, for up to about ten cores (D.
        G. A. Smith and J. Gray, "opt_einsum", J. Open Source Software 3(26), 2018).

    Returns
    -------
    PassCost
        Multiply-accumulates and intermediate elements of the forward pass.

    Raises
    ------
    ShapeError
        If tokens, modes, ranks or the search are not allowed.
    """
    if search not in ("dp", "optimal"):
        raise ShapeError(f"search is {search!r}: choose dp or optimal")
    import opt_einsum  # here, because training does not need it

    sizes, outs, ins = Order.sizes(tokens, out_modes, in_modes, rank), len(out_modes), len(in_modes)
    symbols = {index: opt_einsum.get_symbol(n) for n, index in enumerate(sizes)}
    indices = _train_indices(outs, ins)
    terms = {name: "".join(symbols[index] for index in of) for name, of in indices.items()}
    output, names = terms.pop("y"), list(terms)
    shapes = [tuple(sizes[index] for index in indices[name]) for name in names]
    equation, named = f"{','.join(terms.values())}->{output}", cast(Any, search)  # a name that opt_einsum knows
    path, _ = opt_einsum.contract_path(equation, *shapes, shapes=True, optimize=named)
    steps = []
    for number, pair in enumerate(path, 1):
        right, left = (names.pop(position) for position in sorted(pair, reverse=True))
        names.append(f"T{number}" if names else "y")
        steps.append((names[-1], left, right))
    order = Order(tuple(steps), outs, ins)
    return order.cost(sizes, ()).forward
