"""Step through a contraction flow: network, arithmetic and memory of each step.

In the network circles are tensors, lines are indices; a line between two circles is summed over.
"""

import ipywidgets as widgets
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from bttlab.lab.charts import PALETTE, new_figure, style
from bttlab.lab.explorer import Explorer, button, control, row, slider
from bttlab.lab.flow_figures import FLOW_NAMES
from bttlab.lab.flow_trace import PASSES, FlowTrace, TraceStep, trace_flow
from bttlab.model import ModelConfig
from bttlab.tensor import FLOWS, Order

MOST_TOKENS, MOST_RANK = 128, 64
NETWORK = 5.4  # inches: the width of a cell in a window of 900 pixels, so that letters keep their size there
_SMALL = 8.5
_KINDS = {"t": "0.3", "i": PALETTE[0], "j": PALETTE[1], "r": PALETTE[2]}  # tokens, output modes, input modes, ranks
_MEANINGS = {"i": "output modes", "j": "input modes", "r": "ranks", "t": "tokens"}
_HOT = "#E69F00"


class FlowExplorer(Explorer):
    """A flow, step by step, forward and backward.

    Parameters
    ----------
    out_modes, in_modes : tuple of int
        Factorisations of the layer's numbers of outputs and inputs.
    tokens, rank : int
        As the sliders begin with.
    own : Order or str, optional
        A custom contraction path, or its steps; it is shown first, as "my own".
    """

    def __init__(
        self,
        out_modes: tuple[int, ...] = ModelConfig.linear_out_modes,
        in_modes: tuple[int, ...] = ModelConfig.linear_in_modes,
        tokens: int = 32,
        rank: int = ModelConfig.linear_rank,
        own: Order | str | None = None,
    ):
        flows = [] if own is None else [("my own", Order.of(own, len(out_modes), len(in_modes)))]
        flows += [(FLOW_NAMES[name], name) for name in FLOWS]
        self._modes = out_modes, in_modes
        self.flow = control(widgets.Dropdown, "flow", options=flows)
        self.beside = control(widgets.Dropdown, "beside it", options=[("no other", ""), *flows])
        self.part = widgets.ToggleButtons(options=PASSES, style={"button_width": "90px"})
        self.tokens = slider(tokens, 1, MOST_TOKENS, "tokens")
        self.rank = slider(rank, 1, MOST_RANK, "rank")
        self.step = slider(1, 1, 12, "step")
        back = button("", "step-backward", lambda: self._move(-1), "45px", tooltip="one step back")
        on = button("", "step-forward", lambda: self._move(1), "45px", tooltip="one step on")
        self.trace: FlowTrace | None = None
        self.step_shown: TraceStep | None = None
        figures = [new_figure(width, height) for width, height in ((NETWORK, 2.5), (4.15, 2.9), (4.15, 2.9))]
        self._network, self._macs, self._memory = (figure.subplots() for figure in figures)
        controls = [row(self.flow, self.beside), row(self.tokens, self.rank), row(self.part, self.step, back, on)]
        super().__init__(*figures, controls=controls)
        network, *panels = self._live.widget.children
        new_row = widgets.Box(layout={"flex": "0 0 100%", "height": "0"})  # the panels stay side by side
        self._live.widget.children = (network, new_row, *panels)

    def _move(self, steps: int) -> None:
        self.step.value = min(self.step.max, max(1, self.step.value + steps))

    def _update(self) -> tuple[str, str]:
        self.trace = trace_flow(self.flow.value, self.tokens.value, *self._modes, self.rank.value)
        steps = getattr(self.trace, self.part.value)
        if self.step.max != len(steps):
            with self.step.hold_trait_notifications():
                self.step.value = min(self.step.value, len(steps))
                self.step.max = len(steps)
        number = self.step.value - 1
        self.step_shown = step = steps[number]
        _draw_network(self._network, self.trace, step)
        self._network.set_title(
            f"Step {number + 1} of {len(steps)}:  {step.step.name}", loc="left", fontweight="bold", fontsize=11
        )
        macs, alive = [f.step.macs for f in steps], [sum(f.alive.values()) for f in steps]
        other_macs, other_alive, other = [], [], ""
        if self.beside.value != "":  # a list shows no choice whose value is None
            beside = trace_flow(self.beside.value, self.tokens.value, *self._modes, self.rank.value)
            other_steps = getattr(beside, self.part.value)
            other_macs = [f.step.macs for f in other_steps]
            other_alive = [sum(f.alive.values()) for f in other_steps]
            cost = getattr(beside.cost, self.part.value)
            other = (
                f"<br>beside it, {self.beside.label}: the {self.part.value} pass <b>{cost.macs:,}</b> "
                f"multiply-accumulates and at most <b>{cost.peak_elements:,}</b> elements of intermediates; "
                f"both passes <b>{beside.cost.macs:,}</b>"
            )
        self._draw_dots(self._macs, "Multiply-accumulates", macs, other_macs, number, steps)
        self._draw_dots(self._memory, "Intermediates in memory", alive, other_alive, number, steps)
        self._memory.set_ylabel("elements (logarithmic)")
        total = getattr(self.trace.cost, self.part.value)
        kept = ", ".join(f"{name} {size:,}" for name, size in step.alive.items()) or "nothing"
        results = (
            f"step {number + 1} of {len(steps)}: <b>{step.step.macs:,}</b> multiply-accumulates; "
            f"the {self.part.value} pass: "
            f"<b>{total.macs:,}</b> and at most <b>{total.peak_elements:,}</b> elements of intermediates; "
            f"both passes: <b>{self.trace.cost.macs:,}</b> (counted from shapes)<br>in memory now: {kept}{other}"
        )
        return results, ""

    def _draw_dots(
        self,
        axes: Axes,
        title: str,
        values: list[int],
        beside: list[int],
        number: int,
        steps: tuple[TraceStep, ...],
    ) -> None:
        axes.clear()
        style(axes, title, "step", "number (logarithmic)")
        places, shown = np.arange(1, len(steps) + 1), [value or np.nan for value in values]
        axes.plot(places, shown, "o", color="0.45", markersize=7, label=self.flow.label)
        if beside:
            others = [value or np.nan for value in beside]
            axes.plot(
                range(1, len(beside) + 1), others, "s", color=PALETTE[0], fillstyle="none", label=self.beside.label
            )
            axes.legend(fontsize=7, frameon=False, loc="best")
        axes.plot(places[number], shown[number], "D", color=PALETTE[1], markersize=7)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_xlim(0.4, max(len(steps), len(beside)) + 0.6)
        axes.set_xticks(places, [step.result for step in steps], fontsize=8, rotation=45)
        axes.grid(visible=False, axis="x")


def _draw_network(axes: Axes, trace: FlowTrace, step: TraceStep) -> None:
    """Draw the tensors of a step with their indices; its two operands are marked."""
    axes.clear()
    axes.set_axis_off()
    for k, (kind, meaning) in enumerate(_MEANINGS.items()):
        axes.text(0.25, -0.85 - 0.25 * k, meaning, color=_KINDS[kind], fontsize=_SMALL)
    places = _places(trace, step)
    names = list(places)
    axes.set(xlim=(0.2, 8.4), ylim=(-1.75, 1.45))
    for number, name in enumerate(names):
        x, y = places[name]
        for other in names[number + 1 :]:
            shared = [index for index in trace.indices_of(name) if index in trace.indices_of(other)]
            _draw_edges(axes, trace, (x, y), places[other], shared)
        others = {index for other in names if other != name for index in trace.indices_of(other)}
        free = [index for index in trace.indices_of(name) if index not in others]
        _draw_legs(axes, trace, (x, y), free)
    for name, (x, y) in places.items():
        hot = name in (step.left, step.right)
        axes.scatter(
            x, y, s=560, color=_HOT if hot else "0.88", edgecolors="0.2", linewidths=1.4 if hot else 0.8, zorder=3
        )
        axes.text(x, y, _typeset(name), ha="center", va="center", fontsize=10, zorder=4)


def _places(trace: FlowTrace, step: TraceStep) -> dict[str, tuple[float, float]]:
    """Return the position of each tensor: cores in a row, a merged one in the middle of its parts, x and dy below."""
    if len(step.present) == 2 and step.present == (step.left, step.right):
        return {step.left: (2.6, 0.0), step.right: (6.0, 0.0)}
    cores = sum(name[0] == "G" for name in trace.indices)
    parts = {f"G{k}": [float(k)] for k in range(1, cores + 1)} | {"x": []}
    for product in trace.forward:
        parts[product.result] = parts[product.left] + parts[product.right]
    places = {}
    for name in step.present:
        centre = sum(parts[name]) / len(parts[name]) if parts[name] else 0.75 * cores + 0.5
        places[name] = (centre * 8 / (cores + 1), -1.05 if "t" in trace.indices[name] else 0.2)
    return places


def _draw_edges(axes: Axes, trace: FlowTrace, start: tuple, end: tuple, shared: list[str]) -> None:
    for k, index in enumerate(shared):
        bend = 0.34 * (k - (len(shared) - 1) / 2)
        axes.annotate(
            "",
            end,
            start,
            arrowprops={
                "arrowstyle": "-",
                "color": _KINDS[index[0]],
                "linewidth": 2,
                "connectionstyle": f"arc3,rad={bend}",
            },
            zorder=1,
        )
        x, y = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2
        dx, dy = end[0] - start[0], end[1] - start[1]
        axes.text(x + bend * dy / 2, y - bend * dx / 2, str(trace.sizes[index]), **_on_line(index))


def _draw_legs(axes: Axes, trace: FlowTrace, place: tuple, free: list[str]) -> None:
    x, y = place
    down = "t" in free and y < 0
    for k, index in enumerate(free):
        shift = 0.42 * (k - (len(free) - 1) / 2)
        end = (x + shift, y + (-0.55 if down else 0.75))
        axes.plot([x, end[0]], [y, end[1]], color=_KINDS[index[0]], linewidth=2, zorder=1)
        axes.text(end[0], end[1] + (-0.14 if down else 0.12), str(trace.sizes[index]), **_on_line(index))


def _on_line(index: str) -> dict:
    return {
        "ha": "center",
        "va": "center",
        "fontsize": _SMALL,
        "color": _KINDS[index[0]],
        "zorder": 2,
        "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.8},
    }


def _typeset(name: str) -> str:
    head = "d" if name[0] == "d" else ""
    letter, number = name[len(head)], name[len(head) + 1 :]
    return f"$\\mathrm{{{head}}}{letter}" + (f"_{{{number}}}$" if number else "$")
