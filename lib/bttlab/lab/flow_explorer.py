"""Stepping through a contraction flow: the network, the arithmetic and the memory of every step."""

import ipywidgets as widgets
from matplotlib.axes import Axes

from bttlab.lab.charts import PALETTE, new_figure, style
from bttlab.lab.contraction import PASSES, Film, Frame, film
from bttlab.lab.explorer import Explorer, row, slider
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
        An order of one's own, or its steps: shown first, as "my own".

    Attributes
    ----------
    film : Film
    frame : Frame
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
        self.film: Film | None = None
        self.frame: Frame | None = None
        figure = new_figure(8.3, 5.4)
        grid = figure.add_gridspec(2, 2, height_ratios=(5, 6))
        self._network = figure.add_subplot(grid[0, :])
        self._macs, self._memory = figure.add_subplot(grid[1, 0]), figure.add_subplot(grid[1, 1])
        super().__init__(
            figure,
            [
                row(self.flow, self.tokens, self.rank),
                row(self.part, self.step, back, on),
            ],
        )

    def _move(self, steps: int) -> None:
        self.step.value = min(self.step.max, max(1, self.step.value + steps))

    def _update(self) -> tuple[str, str]:
        self.film = film(self.flow.value, self.tokens.value, *self._modes, self.rank.value)
        frames = self.film.frames(self.part.value)
        if self.step.max != len(frames):
            with self.step.hold_trait_notifications():
                self.step.value = min(self.step.value, len(frames))
                self.step.max = len(frames)
        number = self.step.value - 1
        self.frame = frame = frames[number]
        draw_network(self._network, self.film, frame)
        self._network.set_title(
            f"Step {number + 1} of {len(frames)}:  {frame.step.name}", loc="left", fontweight="bold", fontsize=11
        )
        self._draw_bars(self._macs, "Multiply-accumulates", [f.step.macs for f in frames], number, frames)
        alive = [sum(f.alive.values()) for f in frames]
        self._draw_bars(self._memory, "Intermediates in memory", alive, number, frames)
        self._memory.set_ylabel("elements (logarithmic)")
        total = getattr(self.film.cost, self.part.value)
        kept = ", ".join(f"{name} {size:,}" for name, size in frame.alive.items()) or "nothing"
        results = (
            f"step {number + 1} of {len(frames)}: <b>{frame.step.macs:,}</b> multiply-accumulates; "
            f"the {self.part.value} pass: "
            f"<b>{total.macs:,}</b> and at most <b>{total.peak_elements:,}</b> elements of intermediates; "
            f"both passes: <b>{self.film.cost.macs:,}</b> (counted from shapes)<br>in memory now: {kept}"
        )
        return results, ""

    def _draw_bars(self, axes: Axes, title: str, values: list[int], number: int, frames: tuple[Frame, ...]) -> None:
        axes.clear()
        style(axes, title, "", "number (logarithmic)")
        colours = [PALETTE[4] if k == number else "0.75" for k in range(len(values))]
        axes.bar(range(len(values)), [max(value, 0.5) for value in values], color=colours)
        axes.set_yscale("log")
        axes.set_ylim(bottom=10)
        axes.set_xticks(range(len(frames)), [frame.result for frame in frames], fontsize=8, rotation=45)
        axes.grid(visible=False, axis="x")


_ARROWS = (("step-backward", "one step back"), ("step-forward", "one step on"))
