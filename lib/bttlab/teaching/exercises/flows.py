"""Exercises of notebook 02."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from bttlab.baseline.memory import StorageMeter
from bttlab.card.layer import autograd_errors, run_layer
from bttlab.compiler.errors import ProgramError
from bttlab.lab.flow_check import flow_cycles, wrong_results
from bttlab.teaching.exercises.answers import MODES, RANK, called, is_whole, require_number
from bttlab.teaching.exercises.check import Wrong, exercise, require
from bttlab.tensor import Order, flow_cost, order_cost, order_of
from bttlab.tensor.shapes import tt_shapes
from bttlab.tensor.tt import tt_to_matrix

TOKENS = 13
SHAPE = TOKENS, *MODES, RANK


def _peak(flow: str, tokens: int) -> int:
    return flow_cost(flow, tokens, *MODES, RANK).forward.peak_elements


@exercise("02.1", "read it off the figure of draw_optimum, on the right, or step through peak('right_to_left', t).")
def same_peak(answer: Any) -> str:
    require(is_whole(answer), f"you gave {answer!r}, which is not a number of tokens")
    tokens = int(answer)
    right, both = (_peak(flow, tokens) for flow in ("right_to_left", "bidirectional"))
    found = f"with {tokens} tokens the peaks are {right:,} (right to left) and {both:,} elements (bi-directional)"
    require(right >= both, found)
    require(both > _peak("right_to_left", tokens - 1), f"{found}; fewer tokens reach it, too")
    return "Bi-directional's peak does not move with the tokens: it is L and R."


@exercise(
    "02.2",
    "subtract btt.macs from flow_cost('bidirectional', 32, (8, 8, 12), (12, 8, 8), RANK).forward.macs, with its sign.",
)
def modes_in_reverse(answer: Any) -> str:
    ours, swapped = (flow_cost("bidirectional", 32, *modes, RANK).forward.macs for modes in (MODES, MODES[::-1]))
    require_number(answer, swapped - ours, 0)
    return f"{swapped:,} instead of {ours:,}: a large outer mode makes the first merge large."


# `my_flow` of the notebook
MY_FLOW = "R5 = G5 G6; u = x R5; z = u G4; L2 = G1 G2; L3 = L2 G3; y = z L3".replace("; ", "\n")


@exercise("02.3", "my_flow merges two cores at one end; compare_flows shows what the other end costs.")
def fast_flow(answer: Any, overlay: Any, layer: Any, x: Any, dy: Any) -> str:
    orders = [order_of(flow, *SHAPE) for flow in ("right_to_left", "bidirectional")]
    known = min(flow_cycles(layer, order, TOKENS) for order in [*orders, Order.of(MY_FLOW)])
    cycles = flow_cycles(layer, Order.of(answer), TOKENS)
    require(cycles < known, f"your order takes {cycles:,} cycles; fewer than {known:,} are asked for")
    wrong = wrong_results(autograd_errors(run_layer(overlay, layer, answer, x, dy), layer, x, dy))
    require(not wrong, f"{', '.join(wrong)} of your order differ from autograd's: see check_flow")
    return f"{cycles:,} cycles, not {known:,}: merging two cores of an end is cheap; the third makes a large matrix."


@exercise("02.4", "let x meet G5 first; what is left of the train for G6, once its neighbour is gone?")
def refused_flow(answer: Any, layer: Any) -> str:
    half = flow_cost("reconstruct", *SHAPE).macs / 2
    macs = order_cost(answer, *SHAPE).macs
    with suppress(ProgramError):
        cycles = flow_cycles(layer, Order.of(answer), TOKENS)
        raise Wrong(f"the card runs your order, in {cycles:,} cycles")
    require(macs < half, f"your order takes {macs:,} multiply-accumulates; fewer than {half:,.0f} are asked for")
    return "The machine multiplies matrices: each operand needs an index that is not summed over."


def _require_bidirectional(forward: Callable, cases: Sequence[tuple]) -> None:
    """Raise `Wrong` unless y is right, without more arithmetic than the flow takes or a larger tensor than it has."""
    for tokens, modes, rank in cases:
        random = torch.Generator().manual_seed(tokens)
        cores = [torch.randn(shape, generator=random, dtype=torch.double) for shape in tt_shapes(*modes, rank)]
        matrix = tt_to_matrix(cores, modes[0])
        x = torch.randn(tokens, matrix.shape[1], generator=random, dtype=torch.double)
        with FlopCounterMode(display=False) as counter, StorageMeter() as meter:
            y = called(forward, x, cores)
        wanted = x @ matrix.T
        require(y.shape == wanted.shape, f"your y has the shape {tuple(y.shape)}, not {tuple(wanted.shape)}")
        error = float((y - wanted).abs().max())
        require(torch.allclose(y, wanted), f"your y differs from that of the whole matrix by up to {error:.2g}")
        macs, taken = flow_cost("bidirectional", tokens, *modes, rank).forward.macs, counter.get_total_flops() // 2
        require(0 < taken <= macs, f"your products take {taken:,} multiply-accumulates, the flow's {macs:,}")
        largest, most = max(size for _, size in meter.events), max(matrix.shape) * max(tokens, rank)
        numbers = largest // Tensor.element_size(y)
        require(numbers <= most, f"your largest tensor has {numbers:,} numbers, the flow's {most:,}")


@exercise(
    "02.5",
    "merge each half from its outer end with torch.tensordot(a, b, 1), and flatten its modes; y has to be "
    "x @ layer.to_dense().T, with no more multiply-accumulates than flow_cost('bidirectional', ...) counts.",
    hidden=lambda forward: _require_bidirectional(forward, [(5, ((4, 6), (6, 4)), 3), (40, ((4, 3, 2), (2, 3, 4)), 2)]),
)
def own_bidirectional(answer: Any) -> str:
    """bidirectional(x, cores) -> y; the first half of the cores are the outputs'."""
    _require_bidirectional(answer, [(32, MODES, RANK)])
    return "No product but two has tokens in it: the halves can be merged before the sentence is there."
