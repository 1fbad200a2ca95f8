"""The dashboard's figure: loss, scores, memory and energy of any number of runs, redrawn in place.

A redraw takes time from the training, which needs Python's lock and a processor, too. So axes, titles and legends are
drawn only when they change; the lines are *animated* in matplotlib's sense: drawn by themselves on a copy of the rest
(`bttlab.lab.canvas`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, MaxNLocator

from bttlab.lab.charts import DOTS_PER_INCH, PALETTE, SMOOTHING, as_label, round_up, smooth, style, thinned
from bttlab.lab.dashboard_runs import MARKS, DashboardRun

SIZE = (4.15, 5.0)  # inches: with the controls it fits a window of 1280 x 900 beside JupyterLab's file browser
SCORES = (("intent_accuracy", "intent accuracy", "-"), ("slot_f1", "slot F1", "--"), ("frame_accuracy", "frame", ":"))
_SHAPES = dict(zip(MARKS, ("^", "D", "s"), strict=True))  # of marks
_MARK_NAMES = dict(zip(MARKS, ("new rate", "pause", "stop"), strict=True))
_THOUSANDS = FuncFormatter(lambda value, _: f"{value:,.4g}" if value < 10 else f"{value:,.0f}")
_SMALL = 8.5
_PAPER = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1}
MOST_PERCENT = 120  # of the dev split's axis: the legend stands above 100
LEGEND_ROWS = 6  # lines of names in full size
ACROSS = {"samples": "samples trained on", "time": "training time (s)", "energy": "energy (J)"}


@dataclass(frozen=True)
class View:
    """Settings of the figure.

    Attributes
    ----------
    across : {"samples", "time", "energy"}
        The horizontal axis; the energy panel has samples instead of energy.
    logarithmic : bool
        Of the loss axis.
    smoothing : int
        Samples in the moving mean of the losses.
    memory : str
        One of `ACCOUNTINGS`: data in use, or the whole footprint.
    """

    across: str = "samples"
    logarithmic: bool = False
    smoothing: int = SMOOTHING
    memory: str = "footprint"


class DashboardFigure:
    """Four panels in two figures, which stand side by side, or one below the other in a narrow window.

    Every run has a number, a colour, and a name with the provenance of its figures.

    Attributes
    ----------
    figure, right : Figure
        Loss and dev split; memory and energy.
    """

    def __init__(self) -> None:
        self.figure, self.right = (Figure(figsize=SIZE, dpi=DOTS_PER_INCH, facecolor="white") for _ in range(2))
        grids = [
            figure.add_gridspec(2, 1, left=0.14, right=0.93, bottom=0.29, top=0.945, hspace=0.66)
            for figure in (self.figure, self.right)
        ]
        self._loss, self._dev = (self.figure.add_subplot(cell) for cell in grids[0])
        self._memory, self._energy = (self.right.add_subplot(cell) for cell in grids[1])
        style(self._loss, "", "", "loss")
        style(self._dev, "Dev split (measured)", "", "right (%)")
        style(self._memory, "Memory", "MB ($10^6$ bytes)", "")
        style(self._energy, "Energy so far (J)", "", "")
        self._energy.yaxis.set_major_formatter(_THOUSANDS)
        for axes in (self._loss, self._dev, self._energy):
            axes.xaxis.set_major_formatter(_THOUSANDS)
            axes.set(xlim=(0, 100))
        self._loss.set_ylim(0, 8)
        self._dev.set(ylim=(0, MOST_PERCENT), yticks=range(0, 101, 20))
        self._energy.set_ylim(0, 1)
        handles = [Line2D([], [], color="0.3", linestyle=line, label=label) for _, label, line in SCORES]
        self._dev.legend(handles=handles, loc="upper left", fontsize=_SMALL, frameon=False, ncols=3)
        for axes in (self._loss, self._dev, self._energy):
            axes.xaxis.set_major_locator(MaxNLocator(4))
        self._memory.set(yticks=[])
        self._memory.xaxis.set_major_formatter(_THOUSANDS)
        self._notes = {axes: _new_note(axes) for axes in (*self.figure.axes, *self.right.axes)}
        self._lines: list[_Lines] = []
        self._view: View | None = None
        self._names: list[str] = []
        self._marks: set[str] = set()
        self._shown_memory = None
        self._limits: dict[Axes, tuple] = {}
        self._stale = True
        self.update([])

    def animated(self, figure: Figure) -> list:
        """Return a figure's lines and bands, which are drawn on a copy of the rest."""
        return [artist for lines in self._lines for artist in lines.artists if artist.axes in figure.axes]

    def update(self, runs: Sequence[DashboardRun], view: View = View()) -> bool:
        """Show the runs as they are now.

        Returns
        -------
        bool
            Whether anything but the animated artists has changed.
        """
        if view != self._view:
            self._look(view)
        if [lines.run for lines in self._lines] != list(runs[: len(self._lines)]):
            for lines in self._lines:
                lines.remove()
            self._lines, self._stale = [], True
        for run in runs[len(self._lines) :]:
            self._lines.append(_Lines(run, PALETTE[len(self._lines) % len(PALETTE)], self))
        bounds = [lines.update(view) for lines in self._lines]
        across = {name: (0, max((_extent(run, name) for run in runs), default=100)) for name in ACROSS}
        least = min((least for least, _, _ in bounds), default=0.01) if view.logarithmic else 0
        self._limit(self._loss, across[view.across], (least, round_up(max((top for _, top, _ in bounds), default=8.0))))
        self._limit(self._dev, across[view.across], (0, MOST_PERCENT))
        top = round_up(max((top for _, _, top in bounds), default=1.0))
        _, end = across["time" if view.across == "time" else "samples"]
        self._limit(self._energy, (0, end), (0, top))
        self._name([label_of(number, run) for number, run in enumerate(runs, 1)])
        self._draw_memory(runs, view.memory)
        self._explain_marks({mark for run in runs for _, mark in run.marks})
        self._say_what_is_missing(runs)
        stale, self._stale = self._stale, False
        return stale

    def _look(self, view: View) -> None:
        self._view, self._stale = view, True
        self._limits.clear()
        title = f"Loss, and mean of {view.smoothing} (measured)"
        self._loss.set_title(title, loc="left", fontweight="bold", fontsize=11)
        self._loss.set_yscale("log" if view.logarithmic else "linear")
        title = {"tensors": "Memory: data in use", "footprint": "Memory: whole footprint"}[view.memory]
        self._memory.set_title(title, loc="left", fontweight="bold", fontsize=11)
        for axes in (self._loss, self._dev):
            axes.set_xlabel(ACROSS[view.across])
        self._energy.set_xlabel(ACROSS["time" if view.across == "time" else "samples"])

    def _limit(self, axes: Axes, x: tuple, y: tuple) -> None:
        """Set limits, unless the user has zoomed in."""
        now = axes.get_xlim(), axes.get_ylim()
        if now == (x, y) or self._limits.get(axes, now) != now:
            return
        axes.set(xlim=x, ylim=y)
        self._limits[axes] = axes.get_xlim(), axes.get_ylim()
        self._stale = True

    def _name(self, names: Sequence[str]) -> None:
        names = [_wrapped(as_label(name), 72).strip() for name in names]
        if names == self._names:
            return
        self._names, self._stale = names, True
        for legend in self.figure.legends[:]:
            legend.remove()
        if names:
            size = 7.5 * min(1.0, LEGEND_ROWS / sum(name.count("\n") + 1 for name in names))
            handles = [lines.smooth for lines in self._lines]
            self.figure.legend(handles, names, loc="lower left", fontsize=size, frameon=False)

    def _explain_marks(self, kinds: set[str]) -> None:
        if kinds == self._marks:
            return
        self._marks, self._stale = kinds, True
        handles = [
            Line2D([], [], color="0.3", marker=_SHAPES[kind], linestyle="", markersize=5, label=_MARK_NAMES[kind])
            for kind in MARKS
            if kind in kinds
        ]
        self._loss.legend(handles=handles, loc="upper right", fontsize=_SMALL, frameon=False, ncols=3)

    def _draw_memory(self, runs: Sequence[DashboardRun], accounting: str) -> None:
        state = [(run.memory.get(accounting), run.active) for run in runs], accounting
        if state == self._shown_memory:
            return
        self._shown_memory, self._stale = state, True
        axes = self._memory
        for artist in [*axes.texts, *axes.lines]:
            if artist is not self._notes[axes]:
                artist.remove()
        found = [run.memory[accounting] for run in runs if accounting in run.memory]
        known = [one.high or one.value for one in found]
        most = max(known, default=1e8)
        axes.set(xlim=(0, 1.05 * most / 1e6), ylim=(max(1, len(runs)) - 0.6, -0.8))
        for row, run in enumerate(runs):
            if found := run.memory.get(accounting):
                colour = PALETTE[row % len(PALETTE)]
                axes.plot([found.value / 1e6], [row], "o", color=colour, markersize=8)
                if found.low is not None:
                    axes.plot([found.low / 1e6, found.high / 1e6], [row, row], color=colour, marker="|")
                text = f"{row + 1}: {found.value / 1e6:,.1f} MB ({found.provenance})"
            else:  # greyed: it does not compare
                colour = "0.55"
                text = f"{row + 1}: {'known at the end' if run.active else 'not measured'}"
            place = {"xytext": (4, 6), "textcoords": "offset points", "fontsize": _SMALL, "color": colour}
            axes.annotate(text, (0, row), **place)

    def _say_what_is_missing(self, runs: Sequence[DashboardRun]) -> None:
        self._note(self._loss, "" if runs else "Nothing has been started yet.")
        reasons: dict[str, list[str]] = {}
        for number, run in enumerate(runs, 1):
            if not run.meter.provenance:
                reasons.setdefault(run.meter.how, []).append(str(number))
        parts = [f"none of {', '.join(numbers)}: {reason}" for reason, numbers in reasons.items()]
        if any(run.meter.provenance for run in runs):  # the lines rise to the right: room is above, on the left
            place = {"x": 0.03, "y": 0.97, "ha": "left", "va": "top"}
        else:
            place = {"x": 0.5, "y": 0.5, "ha": "center", "va": "center"}
        self._note(self._energy, "\n".join(_wrapped(part, 34) for part in parts), **place)
        unscored = any(not run.is_scored for run in runs)
        title = "Dev split (measured; not of records)" if unscored else "Dev split (measured)"
        if self._dev.get_title("left") != title:
            self._dev.set_title(title, loc="left", fontweight="bold", fontsize=11)
            self._stale = True

    def _note(self, axes: Axes, text: str, **place) -> None:
        note = self._notes[axes]
        if note.get_text() != text:
            note.set(text=text, **place)
            self._stale = True


class _Lines:
    """One run's artists."""

    def __init__(self, run: DashboardRun, colour: str, parent: DashboardFigure):
        self.run = run
        self.raw, self.smooth = (
            parent._loss.plot([], [], color=colour, alpha=alpha, linewidth=width)[0]
            for alpha, width in ((0.22, 0.6), (1.0, 2.0))
        )
        self.scores = [
            parent._dev.plot([], [], color=colour, linestyle=line, marker="o", markersize=3)[0] for _, _, line in SCORES
        ]
        self.energy = parent._energy.plot([], [], color=colour, linewidth=2)[0]
        self.band = parent._energy.fill_between([], [], [], color=colour, alpha=0.15, linewidth=0)
        at_the_bottom = parent._loss.get_xaxis_transform()
        self.marks = {
            kind: parent._loss.plot([], [], shape, color=colour, transform=at_the_bottom, clip_on=False)[0]
            for kind, shape in _SHAPES.items()
        }
        self.artists = [self.band, self.raw, self.smooth, *self.marks.values(), *self.scores, self.energy]
        for artist in self.artists:
            artist.set_animated(True)

    def update(self, view: View) -> tuple[float, float, float]:
        """Update the lines; return the limits that they need: least and most loss, most energy."""
        run = self.run
        (counts, losses, means), scores = run.curve, list(run.scores)
        if view.smoothing != SMOOTHING and len(run.losses) >= len(counts) > 0 and counts[-1] == len(run.losses):
            means = smooth(run.losses, view.smoothing)[counts - 1]
        shown = thinned(losses)
        x = run.at(counts[shown], view.across)
        self.raw.set_data(x, losses[shown])
        self.smooth.set_data(x, means[shown])
        x = run.at(np.array([count for count, _ in scores]), view.across)
        for line, (name, _, _) in zip(self.scores, SCORES, strict=True):
            line.set_data(x, [100 * getattr(values, name) for _, values in scores])
        marks = list(run.marks)
        for kind, line in self.marks.items():
            counts = np.array([count for count, name in marks if name == kind])
            line.set_data(run.at(counts, view.across), np.zeros(len(counts)))
        energy = np.array(run.energy or np.zeros((0, 4)))
        energy = energy[thinned(energy)]
        x = run.at(energy[:, 0], "time" if view.across == "time" else "samples")
        self.energy.set_data(x, energy[:, 1])
        self.band.set_data(x, energy[:, 2], energy[:, 3])
        most = max(1.25 * energy[-1:, 3], default=0.0)
        top = 1.1 * float(np.quantile(losses, 0.99)) if len(losses) else 8.0
        least = 10.0 ** np.floor(np.log10(np.min(means))) if len(means) and np.min(means) > 0 else 0.01
        return least, max(1.0, top), most or 1.0

    def remove(self) -> None:
        for artist in self.artists:
            artist.remove()


def label_of(number: int, run: DashboardRun) -> str:
    """Return a run's number, name, setting and provenance."""
    if run.meter.provenance == run.time_provenance:
        figures = f"time and energy {run.time_provenance}"
    else:
        energy = f"energy {run.meter.provenance}" if run.meter.provenance else "no energy"
        figures = f"time {run.time_provenance}, {energy}"
    return f"{number} {run.name}, {run.setting}; {figures}"


def _extent(run: DashboardRun, across: str) -> float:
    """Return the end of a run on an axis; seconds and joules are extrapolated."""
    done = {"samples": run.count, "time": run.seconds, "energy": run.meter.joules}[across]
    if across == "samples":
        return run.total if run.active else max(done, 1)
    return round_up(max(1e-3, done * run.total / run.count if run.active and run.count else done))


def _new_note(axes: Axes) -> Text:
    return axes.text(
        0.5, 0.5, "", transform=axes.transAxes, ha="center", va="center", color="0.35", fontsize=_SMALL, bbox=_PAPER
    )


def _wrapped(text: str, width: int = 42) -> str:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) > width:
            lines.append("")
        lines[-1] += f"{word} "
    return "\n".join(lines)
