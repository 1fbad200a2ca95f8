"""Sliders over the model of the cost: what a fine-tuning run costs by batch size, sparsity, length and GPU."""

from collections.abc import Mapping
from dataclasses import replace

import ipywidgets as widgets
import numpy as np
from matplotlib.axes import Axes

from bttlab.cost.configuration import FineTuning
from bttlab.cost.estimate import MODEL_VERSION, Estimate, Estimator
from bttlab.cost.fit import GRID
from bttlab.cost.prices import Gpu
from bttlab.lab.charts import PALETTE, new_figure, style
from bttlab.lab.explorer import Explorer, slider


class CostExplorer(Explorer):
    """Choose GPU, sparsity, sequence length and tokens; the curves show the cost with its band.

    Parameters
    ----------
    estimator : Estimator
    gpus : mapping of str to Gpu
    config : FineTuning
        Where the sliders stand at first; its other fields stay.

    Attributes
    ----------
    estimate : Estimate
        With the largest batch.
    """

    def __init__(self, estimator: Estimator, gpus: Mapping[str, Gpu], config: FineTuning):
        self._estimator, self._gpus, self._config = estimator, gpus, config
        self.gpu = widgets.Dropdown(options=sorted(gpus), description="GPU", layout={"width": "250px"})
        self.top_k = slider(config.top_k, 1, config.experts, "top k")
        self.length = slider(config.sequence_length, 16, 512, "sequence")
        self.tokens = slider(1000, 1, 10_000, "10⁶ tokens")
        self.estimate: Estimate | None = None
        figure = new_figure(8.3, 3.9)
        self._over_batch, self._over_sparsity = figure.subplots(1, 2)
        boxes = [widgets.HBox([self.gpu, self.tokens]), widgets.HBox([self.top_k, self.length])]
        super().__init__(figure, boxes)

    def _update(self) -> tuple[str, str]:
        gpu, tokens = self._gpus[self.gpu.value], 10**6 * self.tokens.value
        config = replace(self._config, top_k=self.top_k.value, sequence_length=self.length.value)
        self.estimate = found = self._estimator.estimate(config, gpu, tokens)
        self._draw_over_batch(found)
        self._draw_over_sparsity(found)
        low, middle, high = found.cost
        results = (
            f"up to <b>{found.largest_batch:,}</b> sequences a step; with as many, <b>{found.hours[1]:,.3g} h</b> and "
            f"<b>{middle:,.3g} USD</b>, between {low:,.3g} and {high:,.3g} (modelled, {MODEL_VERSION}; price published "
            f"by {gpu.provider}, {gpu.date})"
        )
        note = f"extrapolated: {'; '.join(found.extrapolated)}" if found.extrapolated else ""
        return results, note

    def _costs(self, found: Estimate, config: FineTuning, batch: int) -> np.ndarray:
        low, middle, high = self._estimator.tokens_per_second(config, found.gpu, batch)
        return found.tokens / np.array([high, middle, low]) / 3600 * found.gpu.usd_per_hour

    def _draw_over_batch(self, found: Estimate) -> None:
        axes = self._over_batch
        _clear(axes, f"Cost over batch size, {found.gpu.gpu}", "sequences a step")
        for top_k in sorted({1, 2, found.config.top_k, found.config.experts}):
            config = replace(found.config, top_k=top_k)
            batches = [batch for batch in GRID if batch <= self._estimator.largest_batch(config, found.gpu)]
            if not batches:
                continue
            low, middle, high = np.array([self._costs(found, config, batch) for batch in batches]).T
            chosen = top_k == found.config.top_k
            if chosen:
                axes.fill_between(batches, low, high, color=PALETTE[0], alpha=0.15, label="its band", linewidth=0)
            axes.plot(
                batches, middle, color=PALETTE[0] if chosen else "0.6", linewidth=2 if chosen else 1,
                label=f"top {top_k}", linestyle="-" if chosen else {1: ":", 2: "-."}.get(top_k, "--"),
            )  # fmt: skip
        axes.set(xscale="log", yscale="log")
        axes.legend(fontsize=8, frameon=False)

    def _draw_over_sparsity(self, found: Estimate) -> None:
        axes = self._over_sparsity
        _clear(axes, "Cost over sparsity, largest batch", "experts a token goes to, of all")
        points = []
        for top_k in range(1, found.config.experts + 1):
            config = replace(found.config, top_k=top_k)
            largest = self._estimator.largest_batch(config, found.gpu)
            if largest:
                points.append((config.sparsity, *self._costs(found, config, largest)))
        sparsity, low, middle, high = np.array(points).T
        axes.fill_between(sparsity, low, high, color=PALETTE[0], alpha=0.15, linewidth=0)
        axes.plot(sparsity, middle, color=PALETTE[0], marker="o", markersize=4)
        axes.scatter(
            [found.config.sparsity],
            [found.cost[1]],
            s=120,
            facecolors="none",
            edgecolors=PALETTE[1],
            linewidths=2,
            zorder=3,
        )
        axes.set(xlim=(0, 1.05), ylim=(0, None))


def _clear(axes: Axes, title: str, x_label: str) -> None:
    axes.clear()
    style(axes, title, x_label, "USD (modelled)")
