"""Sliders over the model of a GPU step: what a fine-tuning run takes by batch size, sparsity, length and GPU."""

from collections.abc import Mapping
from dataclasses import replace

import ipywidgets as widgets
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from bttlab.baseline.gpus import Gpu
from bttlab.lab.charts import PALETTE, draw_band, new_figure, style
from bttlab.lab.explorer import Explorer, row, slider
from bttlab_cost.configuration import FineTuning
from bttlab_cost.estimate import MODEL_VERSION, Estimate, Estimator

_GRID = sorted({2**power for power in range(16)} | {3 * 2**power for power in range(16)})  # batches


class CostExplorer(Explorer):
    """Choose GPU, sparsity, sequence length and tokens; the curves show the cost with its band.

    Without a price they show hours.

    The sliders begin at `config`, whose other fields stay; `estimate` has the largest batch that always fits.
    """

    def __init__(self, estimator: Estimator, gpus: Mapping[str, Gpu], config: FineTuning):
        self._estimator, self._gpus, self._config = estimator, gpus, config
        names = sorted(gpus, key=lambda name: (name not in estimator.prices, name))  # those with a price first
        self.gpu = widgets.Dropdown(options=names, description="GPU", layout={"width": "250px"})
        self.top_k = slider(config.top_k, 1, config.experts, "top k")
        self.length = slider(config.sequence_length, 16, 1024, "sequence")
        self.tokens = slider(10, 1, 1000, "10⁶ tokens")
        self.estimate: Estimate | None = None
        figures = [new_figure(4.15, 3.9) for _ in range(2)]
        self._over_batch, self._over_sparsity = (figure.subplots() for figure in figures)
        super().__init__(*figures, controls=[row(self.gpu, self.tokens), row(self.top_k, self.length)])

    def _update(self) -> tuple[str, str]:
        gpu, tokens = self._gpus[self.gpu.value], 10**6 * self.tokens.value
        config = replace(self._config, top_k=self.top_k.value, sequence_length=self.length.value)
        self.estimate = estimate = self._estimator.estimate(config, gpu, tokens)
        self._draw_over_batch(estimate)
        self._draw_over_sparsity(estimate)
        money = "no price in the table"
        if estimate.cost is not None:
            low, middle, high = estimate.cost
            asked = f"price published by {estimate.price.provider}, {estimate.price.date}"
            money = f"<b>{middle:,.3g} USD</b>, between {low:,.3g} and {high:,.3g} ({asked})"
        longest = config.longest_length
        results = (
            f"<b>{estimate.batch:,}</b> sequences a step, the most that fit when the longest has {longest:,} tokens; "
            f"<b>{estimate.sequences_per_second[1]:,.3g}</b> a second: "
            f"<b>{estimate.hours[1]:,.3g} h</b>, {money}; modelled, {MODEL_VERSION}"
        )
        return results, "; ".join(estimate.notes)

    def _costs(self, estimate: Estimate, config: FineTuning, batch: int) -> np.ndarray:
        """USD, or hours where there is no price: low, middle, high."""
        low, middle, high = self._estimator.sequences_per_second(config, estimate.gpu, batch)
        hours = estimate.tokens / config.sequence_length / np.array([high, middle, low]) / 3600
        return hours * estimate.price.usd_per_hour if estimate.price else hours

    def _clear(self, axes: Axes, title: str, x_label: str) -> None:
        axes.clear()
        style(axes, title, x_label, "USD (modelled)" if self.estimate.price else "hours (modelled)")

    def _draw_over_batch(self, estimate: Estimate) -> None:
        axes = self._over_batch
        self._clear(axes, f"Over batch size, {estimate.gpu.gpu}", "sequences a step")
        for top_k in sorted({1, 2, estimate.config.top_k, estimate.config.experts}):
            config = replace(estimate.config, top_k=top_k)
            batches = [batch for batch in _GRID if batch <= self._estimator.padded_batch(config, estimate.gpu)]
            if not batches:
                continue
            band = np.array([self._costs(estimate, config, batch) for batch in batches]).T
            if top_k == estimate.config.top_k:
                draw_band(axes, batches, band, PALETTE[0], f"top {top_k}, and its band")
            else:
                line = {1: ":", 2: "-."}.get(top_k, "--")
                axes.plot(batches, band[1], color="0.6", linewidth=1, label=f"top {top_k}", linestyle=line)
        axes.set(xscale="log", yscale="log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axis.set_minor_formatter(NullFormatter())
        axes.legend(fontsize=8, frameon=False)

    def _draw_over_sparsity(self, estimate: Estimate) -> None:
        axes = self._over_sparsity
        self._clear(axes, "Over sparsity, largest batch", "share of the experts a token goes to")
        points = []
        for top_k in range(1, estimate.config.experts + 1):
            config = replace(estimate.config, top_k=top_k)
            largest = self._estimator.padded_batch(config, estimate.gpu)
            if largest:
                points.append((config.sparsity, *self._costs(estimate, config, largest)))
        sparsity, *band = np.array(points).T
        draw_band(axes, sparsity, np.array(band), PALETTE[0], "largest batch", marker="o", markersize=4)
        axes.scatter(
            [estimate.config.sparsity],
            [self._costs(estimate, estimate.config, estimate.batch)[1]],
            s=120,
            facecolors="none",
            edgecolors=PALETTE[1],
            linewidths=2,
            zorder=3,
        )
        axes.set(xlim=(0, 1.05), ylim=(0, None))
