"""Cost of a contraction, computed from shapes: multiply-accumulates and intermediate memory, forward and backward.

Multiply-accumulates (MACs) are those of the matrix products; additions of a bias or of scattered gradients are not
counted. An *intermediate* is a result that is not an input, output or parameter, nor the gradient of one of these. It
is alive from the step that computes it to the last step of its pass that reads it. Intermediates of the forward pass
that the backward pass reads are kept, and are alive when the backward pass starts. The peak of a pass is the largest
number of elements alive during one of its steps. Copies that only rearrange or select (a transposed gradient, the
slices of a core) are not counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bttlab.tensor.shapes import ShapeError, is_positive, ttm_shapes

Rank = int | Sequence[int]


@dataclass(frozen=True)
class Step:
    """One matrix product.

    Attributes
    ----------
    name : str
        As an equation of names, "result = left right".
    macs : int
        Multiply-accumulates.
    elements : int
        Of the result.
    """

    name: str
    macs: int
    elements: int


@dataclass(frozen=True)
class PassCost:
    """Cost of one pass.

    Attributes
    ----------
    steps : tuple of Step
        Matrix products in order.
    peak_elements : int
        Largest number of intermediate elements alive during a step.
    alive : tuple of dict of str to int
        For each step, the elements of the intermediates alive during it, by name.
    """

    steps: tuple[Step, ...]
    peak_elements: int
    alive: tuple[dict[str, int], ...] = ()

    @property
    def macs(self) -> int:
        """Multiply-accumulates of all steps."""
        return sum(step.macs for step in self.steps)


@dataclass(frozen=True)
class Cost:
    """Cost of the forward and backward pass.

    Attributes
    ----------
    forward, backward : PassCost
        Of each pass.
    kept_elements : int
        Elements of the intermediates kept between the passes.
    """

    forward: PassCost
    backward: PassCost
    kept_elements: int

    @property
    def macs(self) -> int:
        """Multiply-accumulates of both passes."""
        return self.forward.macs + self.backward.macs


def lookup_cost(tokens: int, row_modes: Sequence[int], column_modes: Sequence[int], rank: Rank) -> Cost:
    """Return the cost of looking up rows of a TTM, each separately (`bttlab.tensor.ttm.lookup`).

    Parameters
    ----------
    tokens : int
        Number of rows.
    row_modes, column_modes : sequence of int
        Factorisations of the table's numbers of rows and columns, as many modes of each.
    rank : int or sequence of int
        Every internal rank, or all of them in order.

    Returns
    -------
    Cost
        Multiply-accumulates and intermediate elements, forward and backward.

    Raises
    ------
    ShapeError
        If tokens, modes or ranks are not allowed.
    """
    check_tokens(tokens)
    shapes = ttm_shapes(row_modes, column_modes, rank)
    forward, backward = PassProducts({"y"}), PassProducts(set())
    columns = shapes[0][2]
    for k, (before, _, n, after) in enumerate(shapes[1:], 2):
        product = f"P{k}" if k < len(shapes) else "y"
        reads = (f"P{k - 1}" if k > 2 else "G1", f"G{k}")
        forward.add(product, reads, columns, before, n * after, batch=tokens)
        # dS is the gradient of one token's slice: an intermediate until it is added to the gradient of its core.
        backward.add_first(
            (f"dS{k}", (reads[0], f"d{product}"), before, columns, n * after, tokens),
            (f"dP{k - 1}" if k > 2 else "dS1", (f"d{product}", f"G{k}"), columns, n * after, before, tokens),
        )
        columns *= n
    return cost_of(forward, backward)


class PassProducts:
    """The matrix products of one pass; results in `external` are not intermediates."""

    def __init__(self, external: set[str]):
        self.external = external
        self.products: list[tuple[str, tuple[str, ...], Step]] = []

    def add(self, result: str, reads: tuple[str, str], rows: int, inner: int, columns: int, batch: int = 1) -> None:
        self.products.append(_product(result, reads, rows, inner, columns, batch))

    def add_first(self, *products: tuple) -> None:
        """Insert products at the beginning: the backward pass is built along with the forward pass, in reverse."""
        self.products[:0] = [_product(*product) for product in products]

    def intermediates(self) -> dict[str, int]:
        return {result: step.elements for result, _, step in self.products if result not in self.external}

    def reads(self) -> set[str]:
        return {name for _, reads, _ in self.products for name in reads}

    def cost(self, kept: dict[str, int]) -> PassCost:
        alive, during = kept, []
        sizes = self.intermediates()
        last_read = {name: k for k, (_, reads, _) in enumerate(self.products) for name in reads}
        for k, (result, _, _) in enumerate(self.products):
            during.append(alive | {result: sizes[result]} if result in sizes else alive)
            alive = {name: size for name, size in during[k].items() if last_read.get(name, -1) > k}
        peak = max((sum(sizes.values()) for sizes in (kept, *during)), default=0)
        return PassCost(tuple(step for _, _, step in self.products), peak, tuple(during))


def _product(result: str, reads: tuple[str, str], rows: int, inner: int, columns: int, batch: int = 1) -> tuple:
    step = Step(f"{result} = {' '.join(reads)}", batch * rows * inner * columns, batch * rows * columns)
    return result, reads, step


def cost_of(forward: PassProducts, backward: PassProducts) -> Cost:
    """Return the cost of both passes; results of the forward pass that the backward pass reads are kept."""
    kept = {name: size for name, size in forward.intermediates().items() if name in backward.reads()}
    return Cost(forward.cost({}), backward.cost(kept), sum(kept.values()))


def check_tokens(tokens: int) -> None:
    """Raise ShapeError unless tokens are an integer of at least 1."""
    if not is_positive(tokens):
        raise ShapeError(f"tokens is {tokens!r}: it must be an integer of at least 1")
