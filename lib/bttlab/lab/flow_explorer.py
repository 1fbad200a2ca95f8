"""Step through a contraction flow: network, arithmetic and memory of each step."""

import ipywidgets as widgets
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from bttlab.lab.charts import PALETTE, new_figure, style
from bttlab.lab.explorer import Explorer, row, slider
from bttlab.lab.flow_trace import PASSES, FlowTrace, TraceStep, trace_flow
from bttlab.lab.network_picture import draw_network
from bttlab.model import ModelConfig
from bttlab.tensor import FLOWS, Order

FLOW_NAMES = {"right_to_left": "right to left", "bidirectional": "bi-directional", "reconstruct": "reconstruct"}
MOST_TOKENS, MOST_RANK = 128, 64


class FlowExplorer(Explorer):
    """A flow, step by step, forward and backward.

    Parameters
    ----------
    out_modes, in_modes : tuple of int
    tokens, rank : int
        Where the sliders stand at first.
    own : Order or str, optional
        A custom contraction path, or its steps; shown first, as "my own".

    Attributes
    ----------
    trace : FlowTrace
    step_shown : TraceStep
        The step that is drawn.
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
        self.flow = widgets.Dropdown(options=flows, description="flow", layout={"width": "250px"})
        self.part = widgets.ToggleButtons(options=PASSES, style={"button_width": "90px"})
        self.tokens = slider(tokens, 1, MOST_TOKENS, "tokens")
        self.rank = slider(rank, 1, MOST_RANK, "rank")
        self.step = slider(1, 1, 12, "step")
        back, on = (widgets.Button(icon=icon, tooltip=tip, layout={"width": "45px"}) for icon, tip in _ARROWS)
        back.on_click(lambda _: self._move(-1))
        on.on_click(lambda _: self._move(1))
        self.trace: FlowTrace | None = None
        self.step_shown: TraceStep | None = None
        figures = [new_figure(width, height) for width, height in ((8.3, 2.5), (4.15, 2.9), (4.15, 2.9))]
        self._network, self._macs, self._memory = (figure.subplots() for figure in figures)
        controls = [row(self.flow, self.tokens, self.rank), row(self.part, self.step, back, on)]
        super().__init__(*figures, controls=controls)

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
        draw_network(self._network, self.trace, step)
        self._network.set_title(
            f"Step {number + 1} of {len(steps)}:  {step.step.name}", loc="left", fontweight="bold", fontsize=11
        )
        self._draw_dots(self._macs, "Multiply-accumulates", [f.step.macs for f in steps], number, steps)
        alive = [sum(f.alive.values()) for f in steps]
        self._draw_dots(self._memory, "Intermediates in memory", alive, number, steps)
        self._memory.set_ylabel("elements (logarithmic)")
        total = getattr(self.trace.cost, self.part.value)
        kept = ", ".join(f"{name} {size:,}" for name, size in step.alive.items()) or "nothing"
        results = (
            f"step {number + 1} of {len(steps)}: <b>{step.step.macs:,}</b> multiply-accumulates; "
            f"the {self.part.value} pass: "
            f"<b>{total.macs:,}</b> and at most <b>{total.peak_elements:,}</b> elements of intermediates; "
            f"both passes: <b>{self.trace.cost.macs:,}</b> (counted from shapes)<br>in memory now: {kept}"
        )
        return results, ""

    def _draw_dots(self, axes: Axes, title: str, values: list[int], number: int, steps: tuple[TraceStep, ...]) -> None:
        axes.clear()
        style(axes, title, "step", "number (logarithmic)")
        places, shown = np.arange(1, len(steps) + 1), [value or np.nan for value in values]
        axes.plot(places, shown, "o", color="0.45", markersize=7, label=title.lower())
        axes.plot(places[number], shown[number], "D", color=PALETTE[1], markersize=7)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_xlim(0.4, len(steps) + 0.6)
        axes.set_xticks(places, [step.result for step in steps], fontsize=8, rotation=45)
        axes.grid(visible=False, axis="x")


_ARROWS = (("step-backward", "one step back"), ("step-forward", "one step on"))
