"""Sliders over the model of a GPU step: what a fine-tuning run takes by model, batch, sparsity, length and GPUs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import ipywidgets as widgets
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from bttlab.baseline.gpus import Gpu
from bttlab.lab.charts import PALETTE, draw_band, new_figure, style
from bttlab.lab.explorer import Explorer, control, row, slider
from bttlab_cost.configuration import FineTuning
from bttlab_cost.estimate import MODEL_VERSION, Estimate, Estimator
from bttlab_cost.models import MODELS
from bttlab_cost.parallel import ALONE, STRATEGIES, Parallel

_GRID = sorted({2**power for power in range(16)} | {3 * 2**power for power in range(16)})  # batches
NUMBERS_OF_GPUS = (1, 2, 4, 8, 16)
GIVEN = "as in the notebook"


class CostExplorer(Explorer):
    """Choose model, GPU, number of GPUs, sparsity, sequence length and tokens; the curves show the cost with its band.

    Without a price they show hours.

    The model menu begins with `config`; `estimate` has the largest batch that always fits.
    """

    def __init__(self, estimator: Estimator, gpus: Mapping[str, Gpu], config: FineTuning):
        self._estimator, self._gpus = estimator, gpus
        self._models = {GIVEN: config, **MODELS}
        names = sorted(gpus, key=lambda name: (name not in estimator.prices, name))  # those with a price first
        self.model = control(widgets.Dropdown, "model", options=list(self._models))
        self.gpu = control(widgets.Dropdown, "GPU", options=names)
        self.strategy = control(widgets.Dropdown, "shared by", options=list(STRATEGIES), value="fsdp")
        self.number = control(widgets.SelectionSlider, "GPUs", options=NUMBERS_OF_GPUS)
        self.top_k = slider(config.top_k, 1, config.experts, "top k")
        self.length = slider(config.sequence_length, 16, 1024, "sequence")
        self.tokens = slider(10, 1, 1000, "10⁶ tokens")
        self.estimate: Estimate | None = None
        self.model.observe(lambda _: self._begin_with(self._models[self.model.value]), "value")
        figures = [new_figure(4.15, 3.9) for _ in range(2)]
        self._over_batch, self._beside = (figure.subplots() for figure in figures)
        pairs = (self.model, self.gpu), (self.number, self.strategy), (self.top_k, self.length), (self.tokens,)
        super().__init__(*figures, controls=[row(*pair) for pair in pairs])

    def _begin_with(self, config: FineTuning) -> None:
        with self.held():
            self.top_k.value, self.top_k.max = 1, config.experts
            self.top_k.value, self.length.value = config.top_k, config.sequence_length

    def _update(self) -> tuple[str, str]:
        gpu, tokens, number = self._gpus[self.gpu.value], 10**6 * self.tokens.value, self.number.value
        config = self._models[self.model.value]
        config = replace(config, top_k=self.top_k.value, sequence_length=self.length.value)
        self.top_k.disabled, self.strategy.disabled = config.experts == 1, number == 1
        self.estimate = estimate = self._estimator.estimate(config, gpu, tokens, parallel=self._parallel(number))
        self._draw_over_batch(estimate)
        (self._draw_over_sparsity if config.experts > 1 else self._draw_over_gpus)(estimate)
        money = "no price in the table"
        if estimate.cost is not None:
            low, middle, high = estimate.cost
            asked = f"price published by {estimate.price.provider}, {estimate.price.date}"
            money = f"<b>{middle:,.3g} USD</b>, between {low:,.3g} and {high:,.3g} ({asked})"
        each = f" on each of {number} GPUs" if number > 1 else ""
        median = "" if config.longest_length == config.sequence_length else " (the slider sets the median)"
        results = (
            f"<b>{estimate.batch:,}</b> sequences per step{each}, the most that fit if all are as long as the longest, "
            f"{config.longest_length:,} tokens{median}; "
            f"<b>{estimate.sequences_per_second[1]:,.3g}</b> per second: "
            f"<b>{estimate.hours[1]:,.3g} h</b>, {money}; modelled, {MODEL_VERSION}"
        )
        return results, "; ".join(estimate.notes)

    def _parallel(self, number: int) -> Parallel:
        return Parallel.of(number, self.strategy.value, self._gpus[self.gpu.value]) if number > 1 else ALONE

    def _costs(self, estimate: Estimate, config: FineTuning, batch: int, parallel: Parallel) -> np.ndarray:
        """USD, or hours where there is no price: low, middle, high."""
        low, middle, high = self._estimator.sequences_per_second(config, estimate.gpu, batch, parallel)
        hours = estimate.tokens / config.sequence_length / np.array([high, middle, low]) / 3600
        return parallel.gpus * hours * estimate.price.usd_per_hour if estimate.price else hours

    def _clear(self, axes: Axes, title: str, x_label: str) -> None:
        axes.clear()
        style(axes, title, x_label, "USD (modelled)" if self.estimate.price else "hours (modelled)")

    def _draw_over_batch(self, estimate: Estimate) -> None:
        axes, parallel = self._over_batch, estimate.parallel
        self._clear(axes, f"Over batch size, {estimate.gpu.gpu}", "sequences per step of a GPU")
        experts = estimate.config.experts
        for top_k in sorted({1, min(2, experts), estimate.config.top_k, experts}):
            config = replace(estimate.config, top_k=top_k)
            most = self._estimator.padded_batch(config, estimate.gpu, parallel)
            batches = sorted({*(batch for batch in _GRID if batch <= most), most} - {0})  # to the largest that fits
            if not batches:
                continue
            band = np.array([self._costs(estimate, config, batch, parallel) for batch in batches]).T
            if top_k == estimate.config.top_k:
                name = f"top {top_k}, and its band" if config.experts > 1 else "middle, and its band"
                draw_band(axes, batches, band, PALETTE[0], name)
            else:
                line = {1: ":", 2: "-."}.get(top_k, "--")
                axes.plot(batches, band[1], color="0.6", linewidth=1, label=f"top {top_k}", linestyle=line)
        axes.set(xscale="log", yscale="log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axis.set_minor_formatter(NullFormatter())
        self._ring(axes, estimate, estimate.batch)
        axes.legend(frameon=False, loc="best")

    def _draw_over_sparsity(self, estimate: Estimate) -> None:
        self._clear(self._beside, "Over sparsity, largest batch", "share of the experts a token goes to")
        configs = [replace(estimate.config, top_k=top_k) for top_k in range(1, estimate.config.experts + 1)]
        self._draw_beside(estimate, [(config.sparsity, config, estimate.parallel) for config in configs])
        self._beside.set(xlim=(0, 1.05))
        self._ring(self._beside, estimate, estimate.config.sparsity)

    def _draw_over_gpus(self, estimate: Estimate) -> None:
        self._clear(self._beside, "Over the number of GPUs, largest batch", "GPUs")
        numbers = [(number, self._parallel(number)) for number in NUMBERS_OF_GPUS]
        self._draw_beside(estimate, [(number, estimate.config, parallel) for number, parallel in numbers])
        self._beside.set(xscale="log", xticks=NUMBERS_OF_GPUS, xticklabels=map(str, NUMBERS_OF_GPUS))
        self._beside.xaxis.set_minor_formatter(NullFormatter())
        self._ring(self._beside, estimate, self.number.value)

    def _draw_beside(self, estimate: Estimate, rows: Sequence[tuple[float, FineTuning, Parallel]]) -> None:
        """Draw the cost with the largest batch over a quantity; what does not fit is left out."""
        points = []
        for x, config, parallel in rows:
            if largest := self._estimator.padded_batch(config, estimate.gpu, parallel):
                points.append((x, *self._costs(estimate, config, largest, parallel)))
        if points:
            x, *band = np.array(points).T
            draw_band(self._beside, x, np.array(band), PALETTE[0], "largest batch", marker="o", markersize=4)
        self._beside.set(ylim=(0, None))

    def _ring(self, axes: Axes, estimate: Estimate, x: float) -> None:
        """Mark the choice."""
        here = self._costs(estimate, estimate.config, estimate.batch, estimate.parallel)[1]
        look = {"facecolors": "none", "edgecolors": PALETTE[1], "linewidths": 2, "zorder": 3}
        axes.scatter([x], [here], s=120, **look)
