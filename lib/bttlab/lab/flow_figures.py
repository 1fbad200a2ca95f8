"""Costs of the contraction flows over tokens and rank, as figures."""

import math
from collections.abc import Sequence

from matplotlib.ticker import NullLocator

from bttlab.lab.charts import PALETTE, new_figure, style
from bttlab.lab.picture import Picture
from bttlab.tensor import FLOWS, flow_cost, optimal_cost

FLOW_NAMES = {"right_to_left": "right to left", "bidirectional": "bi-directional", "reconstruct": "reconstruct"}
# A flow has one colour in every figure. Some cost the same: a wide line shows below a narrow one of other dashes.
LOOKS = {
    flow: {"color": colour, "linestyle": line, "linewidth": width}
    for flow, colour, line, width in zip(FLOWS, PALETTE, ("-", "--", "-."), (3.5, 2.0, 2.0), strict=False)
}
COLOURS_BY_NAME = {FLOW_NAMES[flow]: str(look["color"]) for flow, look in LOOKS.items()}
OTHER_COLOURS = ("#000000", "0.5")  # of custom paths


def draw_costs(
    tokens: Sequence[int],
    ranks: Sequence[int],
    out_modes: Sequence[int],
    in_modes: Sequence[int],
    fixed: tuple[int, int],
) -> Picture:
    """Draw multiply-accumulates of both passes, left over tokens, right over rank.

    Parameters
    ----------
    tokens, ranks : sequence of int
        On the axes.
    out_modes, in_modes : sequence of int
        Factorisations of the layer's numbers of outputs and inputs.
    fixed : tuple of int
        The tokens of the right panel and the rank of the left one.

    Returns
    -------
    Picture
        Two panels.
    """
    at_tokens, at_rank = fixed
    elements = math.prod((*out_modes, *in_modes))
    figure = new_figure(8.3, 3.4)
    left, right = figure.subplots(1, 2, sharey=True)
    style(left, "", f"tokens (rank {at_rank})", "MACs, forward and backward")
    style(right, "", f"rank ({at_tokens} tokens)", "")
    for flow, look in LOOKS.items():
        over_tokens = [flow_cost(flow, t, out_modes, in_modes, at_rank).macs for t in tokens]
        over_rank = [flow_cost(flow, at_tokens, out_modes, in_modes, r).macs for r in ranks]
        left.loglog(tokens, over_tokens, label=FLOW_NAMES[flow], **look)
        right.loglog(ranks, over_rank, label=FLOW_NAMES[flow], **look)
    left.loglog(tokens, [3 * t * elements for t in tokens], "k:", label="dense")
    right.loglog(ranks, [3 * at_tokens * elements] * len(ranks), "k:", label="dense")
    for axes, places in ((left, tokens), (right, ranks)):
        ticks = [2**k for k in range(max(places).bit_length()) if 2**k >= min(places)]
        axes.set_xticks(ticks, map(str, ticks))
        axes.xaxis.set_minor_locator(NullLocator())
    left.legend(fontsize=8, loc="best")
    return Picture(figure, "Multiply-accumulates of each flow over tokens and over rank.")


def draw_optimum(tokens: Sequence[int], out_modes: Sequence[int], in_modes: Sequence[int], rank: int) -> Picture:
    """Draw arithmetic and peak memory of the forward pass beside those of the best order (`optimal_cost`).

    Parameters
    ----------
    tokens : sequence of int
        On the axis.
    out_modes, in_modes : sequence of int
        Factorisations of the layer's numbers of outputs and inputs.
    rank : int
        Every internal rank.

    Returns
    -------
    Picture
        Two panels.
    """
    best = [optimal_cost(t, out_modes, in_modes, rank) for t in tokens]
    figure = new_figure(8.3, 3.4)
    left, right = figure.subplots(1, 2)
    style(left, "", "tokens", "thousand MACs, forward")
    style(right, "", "tokens", "thousand elements at the peak, forward")
    for flow in ("right_to_left", "bidirectional"):
        costs = [flow_cost(flow, t, out_modes, in_modes, rank).forward for t in tokens]
        left.plot(tokens, [cost.macs / 1e3 for cost in costs], label=FLOW_NAMES[flow], **LOOKS[flow])
        right.plot(tokens, [cost.peak_elements / 1e3 for cost in costs], label=FLOW_NAMES[flow], **LOOKS[flow])
    left.plot(tokens, [cost.macs / 1e3 for cost in best], "k:", label="optimum (opt_einsum)")
    right.plot(tokens, [cost.peak_elements / 1e3 for cost in best], "k:", label="optimum (opt_einsum)")
    left.legend(fontsize=8, loc="best")
    return Picture(figure, "Arithmetic and peak memory of two flows over tokens, beside the best order.")
