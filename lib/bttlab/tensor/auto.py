"""The cheapest order of contraction for a number of tokens: which neighbouring cores to merge, or whether to build W.

The search covers all orders of `bttlab.tensor.flows.grouped`, which split the output cores and the input cores into
groups of neighbours, and `reconstruct`. They include the right-to-left flow and the contractions of the bi-directional
one. With few tokens it is cheaper to merge few cores, with many tokens to merge all.

The backward pass of each order takes twice the multiply-accumulates of its forward pass: a product C = A B has the two
gradients dA = dC B^T and dB = A^T dC, and each costs as much as the product. The order with the cheapest forward pass
is therefore the cheapest in total.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache

from bttlab.tensor.cost import Cost, Rank
from bttlab.tensor.flows import FLOWS, Flow, Grouping, grouped
from bttlab.tensor.order import Order, flow_cost, grouped_cost, optimal_cost
from bttlab.tensor.shapes import ShapeError, full_ranks

# Time beside the multiply-accumulates, in their number: a flow of more and smaller products takes longer for as many.
# Measured: a pass forward and backward, 1 to 128 tokens, four shapes of layers, one thread of an AMD EPYC.
MORE = {"bidirectional": 0, "reconstruct": 0, "right_to_left": 500_000, "grouped": 1_500_000}


def cheapest_order(
    tokens: int, out_modes: Sequence[int], in_modes: Sequence[int], rank: int | Sequence[int]
) -> tuple[Grouping | None, Cost]:
    """Return the order with the fewest multiply-accumulates, forward and backward, and its cost.

    Parameters
    ----------
    tokens : int
        Number of rows of x, at least 1.
    out_modes, in_modes : sequence of int
        Factorisations of the numbers of output and input features.
    rank : int or sequence of int
        Every internal rank, or all of them in order.

    Returns
    -------
    groups : tuple of two tuples of int, or None
        Number of neighbouring cores in each merge, for the output and the input cores; None to build W.
    cost : Cost
        Of this order.

    Raises
    ------
    ShapeError
        If tokens, modes or ranks are not allowed.
    """
    reconstructed = flow_cost("reconstruct", tokens, out_modes, in_modes, rank)  # also checks the arguments
    out_modes, in_modes = tuple(out_modes), tuple(in_modes)
    ranks = full_ranks(rank, len(out_modes) + len(in_modes))[1:-1]
    # The costs of both ends are independent, because only the rank between them is left after the input cores.
    ins = min(
        _groupings(len(in_modes)),
        key=lambda ins: grouped_cost(((1,) * len(out_modes), ins), tokens, out_modes, in_modes, ranks).macs,
    )
    groups, cost = min(
        (
            ((outs, ins), grouped_cost((outs, ins), tokens, out_modes, in_modes, ranks))
            for outs in _groupings(len(out_modes))
        ),
        key=lambda order: order[1].macs,
    )
    if cost.macs > reconstructed.macs:
        return None, reconstructed
    if groups == ((len(out_modes),), (len(in_modes),)):  # the bi-directional flow has these products in another order
        cost = flow_cost("bidirectional", tokens, out_modes, in_modes, ranks)
    return groups, cost


@lru_cache(maxsize=1024)  # called in every forward pass; there are a few hundred sequence lengths at most
def auto_flow(tokens: int, out_modes: tuple[int, ...], in_modes: tuple[int, ...], ranks: tuple[int, ...]) -> Flow:
    """Return the flow of the least time: a named one, or that of `cheapest_order`; parameters as there, as tuples."""
    groups, cost = cheapest_order(tokens, out_modes, in_modes, ranks)
    times = {
        flow: flow_cost(name, tokens, out_modes, in_modes, ranks).macs + MORE[name] for name, flow in FLOWS.items()
    }
    if groups is not None:
        times[grouped(groups)] = cost.macs + MORE["grouped"]
    return min(times, key=lambda flow: times[flow])


def _groupings(cores: int) -> Iterator[tuple[int, ...]]:
    """Yield all ways to split a number of cores into groups of neighbours."""
    yield (cores,)
    for first in range(1, cores):
        for rest in _groupings(cores - first):
            yield (first, *rest)


def order_of(flow: str, tokens: int, out_modes: Sequence[int], in_modes: Sequence[int], rank: Rank) -> Order:
    """Return a named flow as an `Order`.

    Parameters
    ----------
    flow : str
        One of `bttlab.tensor.FLOWS`; "auto" for that of `cheapest_order`; or "optimum" for that of `optimal_cost`.
    tokens : int
        Number of rows of x, at least 1.
    out_modes, in_modes : sequence of int
        Factorisations of the numbers of output and input features.
    rank : int or sequence of int
        Every internal rank, or all of them in order.

    Returns
    -------
    Order
        The products of its forward pass.

    Raises
    ------
    ShapeError
        If the flow is unknown, or tokens, modes or ranks are not allowed.
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
