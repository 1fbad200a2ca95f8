"""Sliders and a figure to click on, over the model of the U50: does it fit, how long, how much energy."""

from collections.abc import Mapping

import ipywidgets as widgets
import numpy as np
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from bttlab.lab.canvas import live_canvas
from bttlab.lab.charts import PALETTE, new_figure, style
from bttlab.lab.design import Design, evaluate, pareto
from bttlab.lab.explorer import Explorer, slider
from bttlab.u50.constants import MODEL_VERSION
from bttlab.u50.estimate import Estimate
from bttlab.u50.resources import RESOURCES

ENCODERS, RANKS, ROWS, CLOCKS = (1, 2, 4, 6), (4, 8, 12, 16, 24), (2, 4, 8, 12, 16), (100, 150, 200, 250, 300)


class DesignExplorer(Explorer):
    """Move the sliders, or click on a point: the design that is chosen is drawn large.

    Parameters
    ----------
    lengths : mapping of int to int
        How many samples of each length an epoch has.
    design : Design
        Where the sliders stand at first.

    Attributes
    ----------
    design : Design
    estimate : Estimate
    """

    def __init__(self, lengths: Mapping[int, int], design: Design):
        self._lengths = dict(lengths)
        self.encoders = slider(design.encoders, 1, 12, "encoders")
        self.rank = slider(design.rank, 1, 48, "rank")
        self.rows = slider(design.rows, 1, 16, "engine rows")
        self.clock = slider(design.clock_mhz, 50, 300, "clock (MHz)")
        self.design, self.estimate = design, None
        self._others: dict[int, dict[Design, Estimate]] = {}
        figure = new_figure(8.3, 4.2)
        self._space, self._resources = figure.subplots(1, 2, width_ratios=(3, 2))
        super().__init__(
            figure,
            [widgets.HBox([self.encoders, self.rank]), widgets.HBox([self.rows, self.clock])],
            canvas=live_canvas,
        )
        figure.canvas.mpl_connect("button_press_event", self._click)

    def choose(self, design: Design) -> None:
        """Set the sliders to a design."""
        chosen = (design.encoders, design.rank, design.rows, design.clock_mhz)
        self._holding = True
        for control, value in zip((self.encoders, self.rank, self.rows, self.clock), chosen, strict=True):
            control.value = value
        self._holding = False
        self.refresh()

    _holding = False

    def refresh(self) -> None:
        """Redraw, unless several sliders are being set at once."""
        if not self._holding:
            super().refresh()

    def _click(self, event) -> None:
        if event.inaxes is not self._space or event.xdata is None:
            return
        designs = list(self._shown)
        here = np.log([event.xdata, event.ydata])
        distances = [np.hypot(*(np.log(_figures(self._shown[design])) - here)) for design in designs]
        self.choose(designs[int(np.argmin(distances))])

    @property
    def _shown(self) -> dict[Design, Estimate]:
        """The designs in the figure: all with this number of encoders."""
        encoders = self.encoders.value
        if encoders not in self._others:
            every = (Design(encoders, rank, rows, clock) for rank in RANKS for rows in ROWS for clock in CLOCKS)
            self._others[encoders] = evaluate(every, self._lengths)
        return self._others[encoders]

    def _update(self) -> tuple[str, str]:
        design = Design(self.encoders.value, self.rank.value, self.rows.value, self.clock.value)
        found = design.estimate(self._lengths)
        self.design, self.estimate = design, found
        self._draw_space(found)
        self._draw_resources(found)
        energy, seconds = found.energy_per_epoch, found.seconds_per_epoch
        fits = "it fits" if found.fits else "it does <b>not</b> fit"
        results = (
            f"<b>{design}</b>: {fits}; an epoch of {found.samples:,} samples takes <b>{seconds:,.1f} s</b> and "
            f"<b>{energy.mid:,.0f} J</b>, between {energy.low:,.0f} and {energy.high:,.0f} (modelled, {MODEL_VERSION})"
        )
        names = ", ".join(f"{RESOURCES[name]} (by {excess:,.0f})" for name, excess in found.resources.excess.items())
        return results, f"more than the card has: {names}" if names else ""

    def _draw_space(self, chosen: Estimate) -> None:
        axes = self._space
        axes.clear()
        style(axes, "Click on a design", "time of an epoch (s, modelled)", "energy of an epoch (J, modelled)")
        axes.set(xscale="log", yscale="log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axis.set_minor_formatter(NullFormatter())
        groups = {True: {}, False: {}}
        for design, found in self._shown.items():
            groups[found.fits][design] = _figures(found)
        for fits, (colour, marker, name) in ((False, ("0.7", "x", "too large")), (True, (PALETTE[0], "o", "fits"))):
            if groups[fits]:
                axes.scatter(*zip(*groups[fits].values(), strict=True), s=18, color=colour, marker=marker, label=name)
        best = [groups[True][design] for design in pareto(groups[True])]
        if best:
            axes.plot(*zip(*best, strict=True), color=PALETTE[0], linewidth=1, label="none better (Pareto)")
        axes.scatter(*_figures(chosen), s=170, facecolors="none", edgecolors=PALETTE[1], linewidths=2.5, label="chosen")
        axes.legend(fontsize=8, loc="upper left", framealpha=0.8)

    def _draw_resources(self, found: Estimate) -> None:
        axes = self._resources
        axes.clear()
        style(axes, "Of what the card has (modelled)", "%", "")
        for row, name in enumerate(RESOURCES):
            part = 100 * found.resources.utilisation(name)
            axes.barh(row, part, color=PALETTE[2] if part <= 100 else PALETTE[1], height=0.55)
            axes.text(2, row - 0.34, f"{RESOURCES[name]}: {part:.0f} %", fontsize=9, va="bottom")
        axes.axvline(100, color="0.2", linestyle="--", linewidth=1)
        axes.set(yticks=[], ylim=(len(RESOURCES) - 0.4, -0.9), xlim=(0, None))


def _figures(found: Estimate) -> tuple[float, float]:
    return found.seconds_per_epoch, found.energy_per_epoch.mid
