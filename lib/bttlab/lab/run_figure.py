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
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator

from bttlab.lab.charts import DOTS_PER_INCH, PALETTE, SMOOTHING, as_label, smooth, style, thinned
from bttlab.lab.runs import Run

SIZE = (8.3, 6.4)  # inches: what a cell has room for beside JupyterLab's file browser
SCORES = (("intent_accuracy", "intent accuracy", "-"), ("slot_f1", "slot F1", "--"), ("frame_accuracy", "frame", ":"))
_THOUSANDS = FuncFormatter(lambda value, _: f"{value:,.4g}" if value < 10 else f"{value:,.0f}")
_SMALL = 8.5
_PAPER = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1}
_MARK = {"color": "0.2", "marker": "v", "markersize": 6, "markeredgecolor": "0.2", "linewidth": 1.5}  # published
MOST_PERCENT = 120  # of the dev split's axis: the legend stands above 100
LEAST_BYTES = 1e5
LEGEND_ROWS = 6  # of the runs' names in full size
ACROSS = {"samples": "samples trained on", "time": "training time (s)", "energy": "energy (J)"}


@dataclass(frozen=True)
class View:
    """How the curves are looked at.

    Attributes
    ----------
    across : {"samples", "time", "energy"}
        What runs along the axis; of the energy's own panel samples, where it would be energy.
    logarithmic : bool
        The loss's axis.
    smoothing : int
        Samples in the moving mean of the losses.
    published : bool
        Whether what was published beside a run is marked.
    """

    across: str = "samples"
    logarithmic: bool = False
    smoothing: int = SMOOTHING
    published: bool = True


class RunFigure:
    """Four panels; every run has a number and a colour, and its name below tells where its figures come from.

    Attributes
    ----------
    figure : Figure
        Without a canvas of pyplot's.
    """

    def __init__(self) -> None:
        self.figure = Figure(figsize=SIZE, dpi=DOTS_PER_INCH, facecolor="white")
        grid = self.figure.add_gridspec(
            2, 2, width_ratios=(5, 4), left=0.125, right=0.955, bottom=0.235, top=0.95, hspace=0.46, wspace=0.25
        )
        self._loss, self._memory = (self.figure.add_subplot(grid[0, column]) for column in (0, 1))
        self._dev, self._energy = (self.figure.add_subplot(grid[1, column]) for column in (0, 1))
        style(self._loss, "", "", "loss")
        style(self._dev, "Dev split (measured)", "", "right (%)")
        style(self._memory, "Memory for training", "bytes (logarithmic)", "")
        style(self._energy, "Energy so far", "", "energy (J)")
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
        self._memory.set(xscale="log", xlim=(LEAST_BYTES, 1e8), yticks=[])
        self._memory.xaxis.set_major_formatter(EngFormatter("B"))
        self._notes = {axes: _new_note(axes) for axes in self.figure.axes}
        self._lines: list[_Lines] = []
        self._view: View | None = None
        self._names: list[str] = []
        self._bars = None
        self._limits: dict[Axes, tuple] = {}
        self._stale = True
        self.update([])

    @property
    def animated(self) -> list:
        """What moves: the lines of the runs, and their bands."""
        return [artist for lines in self._lines for artist in lines.artists]

    def update(self, runs: Sequence[Run], view: View = View()) -> bool:
        """Show the runs as they are now.

        Returns
        -------
        bool
            Whether something else than what is animated has changed.
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
        self._limit(
            self._loss, across[view.across], (least, _round_up(max((top for _, top, _ in bounds), default=8.0)))
        )
        self._limit(self._dev, across[view.across], (0, MOST_PERCENT))
        top = _round_up(max((top for _, _, top in bounds), default=1.0))
        _, end = across["time" if view.across == "time" else "samples"]
        self._limit(self._energy, (0, 1.03 * end), (0, top))  # a mark at the end is seen whole
        marked = [run for run in runs if run.published and view.published]
        self._name([label_of(number, run) for number, run in enumerate(runs, 1)], marked)
        self._draw_memory(runs, marked)
        self._say_what_is_missing(runs)
        stale, self._stale = self._stale, False
        return stale

    def _look(self, view: View) -> None:
        self._view, self._stale = view, True
        self._limits.clear()
        title = f"Loss, and mean of the last {view.smoothing} (measured)"
        self._loss.set_title(title, loc="left", fontweight="bold", fontsize=11)
        self._loss.set_yscale("log" if view.logarithmic else "linear")
        for axes in (self._loss, self._dev):
            axes.set_xlabel(ACROSS[view.across])
        self._energy.set_xlabel(ACROSS["time" if view.across == "time" else "samples"])

    def _limit(self, axes: Axes, x: tuple, y: tuple) -> None:
        """Set limits, unless the reader has zoomed in."""
        now = axes.get_xlim(), axes.get_ylim()
        if now == (x, y) or self._limits.get(axes, now) != now:
            return
        axes.set(xlim=x, ylim=y)
        self._limits[axes] = axes.get_xlim(), axes.get_ylim()
        self._stale = True

    def _name(self, names: Sequence[str], marked: Sequence[Run]) -> None:
        names = [as_label(name) for name in [*names, *dict.fromkeys(str(run.published) for run in marked)]]
        if names == self._names:
            return
        self._names, self._stale = names, True
        for legend in self.figure.legends[:]:
            legend.remove()
        if names:
            size = 8 * min(1.0, LEGEND_ROWS / len(names))
            handles = [lines.smooth for lines in self._lines]
            handles += [Line2D([], [], **_MARK) for _ in names[len(handles) :]]
            self.figure.legend(handles, names, loc="lower left", fontsize=size, frameon=False, bbox_to_anchor=(0.06, 0))

    def _draw_memory(self, runs: Sequence[Run], marked: Sequence[Run]) -> None:
        known = [(i, run) for i, run in enumerate(runs) if run.memory is not None]
        state = [(i, run.memory, run in marked) for i, run in known]
        if state == self._bars:
            return
        self._bars, self._stale = state, True
        axes = self._memory
        for artist in [*axes.patches, *axes.texts, *axes.lines]:
            if artist is not self._notes[axes]:
                artist.remove()
        if not known:
            return
        most = max(run.memory.value * (run.published.memory[1] if run in marked else 1) for _, run in known)
        axes.set(xlim=(LEAST_BYTES, max(1e8, 3 * most)), ylim=(len(known) - 0.4, -0.6))
        for row, (i, run) in enumerate(known):
            axes.barh(row, run.memory.value, height=0.36, color=PALETTE[i % len(PALETTE)])
            text = f"{i + 1}: {run.memory.value / 1e6:,.1f} MB ({run.memory.provenance})"
            axes.text(LEAST_BYTES * 1.1, row - 0.22, text, fontsize=_SMALL, va="bottom")
            if run in marked:
                axes.plot([times * run.memory.value for times in run.published.memory], [row, row], **_MARK)
        for chip in {run.published.chip for run in marked}:
            axes.axvline(chip, color="0.35", linestyle=":", linewidth=1)
            text = f"chip: {chip / 1e6:.1f} MB (published) "
            axes.text(chip, len(known) - 0.42, text, fontsize=7, ha="right", va="bottom", color="0.35")

    def _say_what_is_missing(self, runs: Sequence[Run]) -> None:
        silent = [run for run in runs if run.memory is None]
        waiting = any(run.active for run in silent)
        known = len(silent) < len(runs) or not runs
        self._note(self._memory, "" if known else "known at the end" if waiting else "no figure")
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

    def __init__(self, run: Run, colour: str, parent: RunFigure):
        self.run = run
        self.raw, self.smooth = (
            parent._loss.plot([], [], color=colour, alpha=alpha, linewidth=width)[0]
            for alpha, width in ((0.22, 0.6), (1.0, 2.0))
        )
        self.scores = [
            parent._dev.plot([], [], color=colour, linestyle=line, marker="o", markersize=3)[0] for _, _, line in SCORES
        ]
        self.energy = parent._energy.plot([], [], color=colour, linewidth=2)[0]
        self.mark = parent._energy.plot([], [], **_MARK | {"color": colour})[0]
        self.band = parent._energy.fill_between([], [], [], color=colour, alpha=0.15, linewidth=0)
        self.artists = [self.band, self.raw, self.smooth, *self.scores, self.energy, self.mark]
        for artist in self.artists:
            artist.set_animated(True)

    def update(self, view: View) -> tuple[float, float, float]:
        """Take the run's data; returns the bottom and the top of the loss axis, and the energy's top, that it needs."""
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
        energy = np.array(run.energy or np.zeros((0, 4)))
        energy = energy[thinned(energy)]
        x = run.at(energy[:, 0], "time" if view.across == "time" else "samples")
        self.energy.set_data(x, energy[:, 1])
        self.band.set_data(x, energy[:, 2], energy[:, 3])
        marked = slice(-1, None) if run.published and view.published else slice(0)
        joules = energy[marked, 1] * (run.published.energy if run.published else 1)
        self.mark.set_data(x[marked], joules)
        most = max([*1.25 * energy[-1:, 3], *1.1 * joules], default=0.0)
        top = 1.1 * float(np.quantile(losses, 0.99)) if len(losses) else 8.0
        least = 10.0 ** np.floor(np.log10(np.min(means))) if len(means) and np.min(means) > 0 else 0.01
        return least, max(1.0, top), most or 1.0

    def remove(self) -> None:
        for artist in self.artists:
            artist.remove()


def label_of(number: int, run: Run) -> str:
    """Return what a run is called: its number and name, what it is trained with, and where its figures come from."""
    if run.meter.provenance == run.time_provenance:
        figures = f"time and energy {run.time_provenance}"
    else:
        energy = f"energy {run.meter.provenance}" if run.meter.provenance else "no energy"
        figures = f"time {run.time_provenance}, {energy}"
    return f"{number} {run.name}, {run.setting}; {figures}"


def _extent(run: Run, across: str) -> float:
    """How far a run will go: in seconds and joules only about."""
    done = {"samples": run.count, "time": run.seconds, "energy": run.meter.joules}[across]
    if across == "samples":
        return run.total if run.active else max(done, 1)
    return _round_up(max(1e-3, done * run.total / run.count if run.active and run.count else done))


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


def _round_up(value: float) -> float:
    """Return the next larger of 1, 1.5, 2, 3, 4, 5, 6, 8, 10 times a power of ten: limits that seldom change."""
    power = 10.0 ** np.floor(np.log10(value))
    return next(float(step * power) for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * power >= value)
