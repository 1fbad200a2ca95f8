"""Custom contraction path of a TT linear layer, as steps, with the backward pass that follows from it.

A step multiplies two tensors and sums over the indices that they share: "z = x R4". The forward pass begins with x and
the cores G1, G2, ... and ends with y. Each product C = A B then has two gradients, dA = dC B and dB = A dC (the product
rule), so the backward pass needs nothing that the forward pass does not say.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bttlab.tensor.auto import cheapest_order
from bttlab.tensor.cost import Cost, PassProducts, Rank, flow_cost, optimal_cost
from bttlab.tensor.flows import FLOWS
from bttlab.tensor.shapes import ShapeError, tt_shapes

Product = tuple[str, str, str]  # result, left, right
_STEP = re.compile(r"([A-Za-z]\w*)\s*=\s*([A-Za-z]\w*)\s+([A-Za-z]\w*)")


@dataclass(frozen=True)
class Order:
    """An order of contraction.

    Attributes
    ----------
    steps : tuple of (str, str, str)
        Result, left and right tensor of each product; the last result is y.
    outputs, inputs : int
        Cores at each end.
    """

    steps: tuple[Product, ...]
    outputs: int = 3
    inputs: int = 3

    def __post_init__(self) -> None:
        cores = [f"G{k}" for k in range(1, self.outputs + self.inputs + 1)]
        there, known = ["x", *cores], {"x", *cores}
        for number, (result, left, right) in enumerate(self.steps, 1):
            text = f"step {number}, '{result} = {left} {right}'"
            for name in (left, right):
                if name not in known:
                    raise ShapeError(f"{text}: there is no {name} yet; there are {', '.join(there)}")
                if name not in there:
                    raise ShapeError(f"{text}: {name} went into an earlier product; there are {', '.join(there)}")
            if left == right:
                raise ShapeError(f"{text}: a tensor is not multiplied with itself; there are {', '.join(there)}")
            if result in known or result in {f"d{name}" for name in known} or f"d{result}" in known:
                raise ShapeError(f"{text}: the name {result} is taken; gradients are called d..., choose another")
            there = [name for name in there if name not in (left, right)] + [result]
            known.add(result)
        if there != ["y"]:
            rest = ", ".join(name for name in there if name != "y")
            raise ShapeError(
                f"the order leaves {rest}: every core goes into one product, and the last product is called y"
            )

    @classmethod
    def of(cls, text: "str | Sequence[str] | Order", outputs: int = 3, inputs: int = 3) -> "Order":
        """Return the order that lines such as "z = x R4" describe, one a step.

        Raises
        ------
        ShapeError
            If a line is no step, or the steps are no order: the line says what is wrong.
        """
        if isinstance(text, Order):
            return text
        lines = text.splitlines() if isinstance(text, str) else list(text)
        steps = []
        for line in (line.split("#")[0].strip() for line in lines):
            if line:
                match = _STEP.fullmatch(line)
                if match is None:
                    raise ShapeError(f"{line!r} is no step: a step is 'result = left right', such as 'z = x R4'")
                steps.append((match[1], match[2], match[3]))
        return cls(tuple(steps), outputs, inputs)

    def __str__(self) -> str:
        """The steps, one a line."""
        return "\n".join(f"{result} = {left} {right}" for result, left, right in self.steps)

    def indices(self) -> dict[str, tuple[str, ...]]:
        """Return the indices of every tensor: t (tokens), i1, i2, ... and j1, j2, ... (modes), r1, r2, ... (ranks).

        A gradient has those of its tensor.
        """
        modes = [f"i{k}" for k in range(1, self.outputs + 1)] + [f"j{k}" for k in range(1, self.inputs + 1)]
        bonds = ["", *(f"r{k}" for k in range(1, len(modes))), ""]
        indices = {"x": ("t", *modes[self.outputs :]), "y": ("t", *modes[: self.outputs])}
        for k, mode in enumerate(modes):
            indices[f"G{k + 1}"] = tuple(index for index in (bonds[k], mode, bonds[k + 1]) if index)
        for result, left, right in self.steps[:-1]:
            shared = set(indices[left]) & set(indices[right])
            indices[result] = tuple(index for index in indices[left] + indices[right] if index not in shared)
        return indices

    def sizes(self, tokens: int, out_modes: Sequence[int], in_modes: Sequence[int], rank: Rank) -> dict[str, int]:
        """Return the size of every index."""
        shapes = tt_shapes(out_modes, in_modes, rank)
        names = [f"i{k}" for k in range(1, len(out_modes) + 1)] + [f"j{k}" for k in range(1, len(in_modes) + 1)]
        sizes = {"t": tokens} | {name: shape[1] for name, shape in zip(names, shapes, strict=True)}
        return sizes | {f"r{k}": shape[2] for k, shape in enumerate(shapes[:-1], 1)}

    def backward(self, chain_first: bool) -> tuple[Product, ...]:
        """Return the products of the backward pass.

        Parameters
        ----------
        chain_first : bool
            Whether the gradients on the way from y to x come first, those of the cores afterwards; else both gradients
            of a product follow each other.
        """
        indices, made = self.indices(), {step[0]: step for step in self.steps}
        chain: list[Product] = []
        cores: list[Product] = []

        def gradients(step: Product) -> list[Product]:
            result, left, right = step
            return [(f"d{left}", f"d{result}", right), (f"d{right}", left, f"d{result}")]

        def unmerge(name: str, into: list[Product]) -> None:
            if name in made:
                into += gradients(made[name])
                for operand in made[name][1:]:
                    unmerge(operand, into)

        name = "y"
        while name in made:
            step = made[name]
            token_sized, other = sorted(
                zip(step[1:], gradients(step), strict=True), key=lambda p: "t" not in indices[p[0]]
            )
            later = cores if chain_first else chain
            if not chain_first:
                chain.append(other[1])
            chain.append(token_sized[1])
            if chain_first:
                cores.append(other[1])
            unmerge(other[0], later)
            name = token_sized[0]
        return tuple(chain + cores)

    def passes(self, sizes: Mapping[str, int]) -> tuple[Cost, tuple[Product, ...]]:
        """Return the cost of both passes, and the products of the backward pass in the order with the smaller peak."""
        both = [(self._cost(sizes, self.backward(first)), self.backward(first)) for first in (True, False)]
        return min(both, key=lambda one: one[0].backward.peak_elements)

    def _cost(self, sizes: Mapping[str, int], backward: Sequence[Product]) -> Cost:
        indices = self.indices()
        indices |= {f"d{name}": of for name, of in indices.items()}
        cores = {f"dG{k}" for k in range(1, self.outputs + self.inputs + 1)}
        passes = PassProducts({"y"}), PassProducts({"dx", *cores})
        for products, into in ((self.steps, passes[0]), (backward, passes[1])):
            for result, left, right in products:
                a, b, c = (set(indices[name]) for name in (left, right, result))
                rows, inner, columns = (math.prod(sizes[i] for i in of) for of in (a & c, a & b, b & c))
                into.add(result, (left, right), rows, inner, columns)
        kept = {name: size for name, size in passes[0].intermediates().items() if name in passes[1].reads()}
        return Cost(passes[0].cost({}), passes[1].cost(kept), sum(kept.values()))


def order_cost(
    order: "Order | str | Sequence[str]", tokens: int, out_modes: Sequence[int], in_modes: Sequence[int], rank: Rank
) -> Cost:
    """Return the cost of a custom path; of the two orders of its backward pass, the one with the smaller peak.

    Parameters and errors are as for `flow_cost`.
    """
    order = Order.of(order, len(out_modes), len(in_modes))
    return order.passes(order.sizes(tokens, out_modes, in_modes, rank))[0]


def order_of(flow: str, tokens: int, out_modes: Sequence[int], in_modes: Sequence[int], rank: Rank) -> Order:
    """Return a known flow as an order.

    Parameters
    ----------
    flow : str
        One of `bttlab.tensor.FLOWS`; "auto", the cheapest of `cheapest_order`; or "optimum", what opt_einsum finds.
    tokens, out_modes, in_modes, rank
        As for `flow_cost`.
    """
    if flow == "auto":
        forward = cheapest_order(tokens, out_modes, in_modes, rank)[1].forward
    elif flow == "optimum":
        forward = optimal_cost(tokens, out_modes, in_modes, rank)
    elif flow in FLOWS:
        forward = flow_cost(flow, tokens, out_modes, in_modes, rank).forward
    else:
        raise ShapeError(f"flow is {flow!r}: choose one of {', '.join(FLOWS)}, auto, optimum")
    return Order.of([step.name for step in forward.steps], len(out_modes), len(in_modes))
