"""Figures of what fine-tuning costs on this machine: time by stage and layer, load of the experts."""

from collections.abc import Mapping

import numpy as np

from bttlab.lab.charts import PALETTE, new_figure, style
from bttlab.lab.picture import Picture

LAYER_COLOURS = {
    "attention": PALETTE[0],
    "router": PALETTE[1],
    "experts": PALETTE[2],
    "norm": PALETTE[4],
    "other": "0.7",
    "all": PALETTE[3],
}
LABELS = {"other": "embedding, output, loss", "all": "optimizer"}


def draw_breakdown(rows: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Picture:
    """Draw the time of a step by stage and layer, a bar for each row.

    Parameters
    ----------
    rows : mapping of str to dict
        Each as from `bttlab.cost.breakdown.time_breakdown`.
    """
    figure = new_figure(8.3, 1.6 + 0.6 * len(rows))
    axes = figure.subplots()
    style(axes, "Time of a step (measured)", "ms", "")
    for row, stages in enumerate(rows.values()):
        start = 0.0
        for stage, layers in stages.items():
            begin = start
            for layer, seconds in layers.items():
                label = LABELS.get(layer, layer)
                taken = label in axes.get_legend_handles_labels()[1]
                axes.barh(
                    row,
                    1e3 * seconds,
                    left=start,
                    color=LAYER_COLOURS[layer],
                    height=0.5,
                    label=None if taken else label,
                )
                start += 1e3 * seconds
            axes.plot([start, start], [row - 0.38, row + 0.38], color="0.15", linewidth=1.2)
            axes.text((begin + start) / 2, row - 0.3, stage, ha="center", va="bottom", fontsize=8, color="0.25")
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylim(len(rows) - 0.45, -0.75)
    axes.legend(fontsize=8, ncols=6, loc="upper center", bbox_to_anchor=(0.45, -0.3), frameon=False)
    return Picture(figure, "The time of a step by stage and layer, a bar for each row.")


def draw_load(load: np.ndarray, steps: int) -> Picture:
    """Draw the share of the tokens that each expert gets over training, a heat map for each layer.

    Parameters
    ----------
    load : ndarray, shape (parts, layers, experts)
        From `bttlab.cost.breakdown.expert_load`.
    steps : int
        That were trained.
    """
    _, layers, experts = load.shape
    figure = new_figure(8.3, 1.2 + 0.25 * experts)
    panels = figure.subplots(1, layers, sharey=True, squeeze=False)
    for layer, axes in enumerate(panels[0]):
        image = axes.imshow(
            100 * load[:, layer].T, aspect="auto", cmap="cividis", vmin=0, vmax=100 * load.max(),
            extent=(0, steps, experts + 0.5, 0.5), interpolation="nearest",
        )  # fmt: skip
        axes.set_title(f"layer {layer + 1}", loc="left", fontsize=10, fontweight="bold")
        axes.set_xlabel("training step")
    panels[0, 0].set_ylabel("expert")
    panels[0, 0].set_yticks(range(1, experts + 1))
    bar = figure.colorbar(image, ax=panels[0].tolist())
    bar.set_label("share of the tokens (%, measured)")
    return Picture(figure, "The share of the tokens that each expert gets over training, a heat map for each layer.")
