"""Cycles of the contraction kernels over tokens, as a figure."""

import itertools
from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np

from bttlab.lab.charts import PALETTE
from bttlab.u50.contraction_cycles import STEPS, predict
from bttlab.u50.layer import LayerShape

WITH_TOKENS = ("z", "y", "dz", "dx", "dL3", "dR4")  # of the bi-directional flow's products
TITLES = {"right_to_left": "right to left", "bidirectional": "bi-directional"}
KINDS = ("products with tokens", "products of cores alone", "re-ordering", "from and to HBM")


def kind_of(flow: str, step: str) -> str:
    """Return what a step of a contraction kernel does, one of `KINDS`."""
    if step in ("load", "store"):
        return KINDS[3]
    if step.split()[0] in ("turn", "pack", "transpose"):
        return KINDS[2]
    return KINDS[1] if flow == "bidirectional" and step not in WITH_TOKENS else KINDS[0]


def cycles_by_kind(flow: str, shape: LayerShape, tokens: int) -> dict[str, int]:
    """Return the cycles of both passes by kind of step; where steps run side by side, the first of `KINDS` counts."""
    cycles = dict.fromkeys(KINDS, 0)
    for spans in predict(flow, shape, tokens).values():
        edges = sorted({edge for span in spans.values() for edge in span})
        for begin, end in itertools.pairwise(edges):
            going_on = {kind_of(flow, name) for name, span in spans.items() if span[0] <= begin and end <= span[1]}
            cycles[min(going_on, key=KINDS.index)] += end - begin
    return cycles


def draw_cycles(tokens: Sequence[int], shape: LayerShape) -> None:
    """Draw the modelled cycles of both passes over tokens, a panel a flow, by what they are spent on.

    Parameters
    ----------
    tokens : sequence of int
    shape : LayerShape
        Of the kernels.
    """
    _, panels = plt.subplots(1, 2, figsize=(8.3, 3.6), layout="constrained", sharey=True)
    parts = {flow: [cycles_by_kind(flow, shape, t) for t in tokens] for flow in STEPS}
    totals = {flow: np.array([sum(at.values()) for at in counts]) / 1e3 for flow, counts in parts.items()}
    for axes, (flow, counts) in zip(panels, parts.items(), strict=True):
        rows = [[at[kind] / 1e3 for at in counts] for kind in KINDS]
        axes.stackplot(tokens, rows, labels=KINDS, colors=PALETTE)
        other = next(name for name in totals if name != flow)
        axes.plot(tokens, totals[other], "k--", label="the other flow in all")
        axes.set(title=TITLES[flow], xlabel="tokens", xlim=(tokens[0], tokens[-1]))
    panels[0].set_ylabel("thousand cycles, both passes (modelled)")
    handles, labels = panels[0].get_legend_handles_labels()
    panels[0].legend(handles[::-1], labels[::-1], fontsize=8, loc="upper left")
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
