"""What the dashboard shows of its runs: losses, dev split, memory and energy in a figure, in words, and as ratios."""

import textwrap
from collections.abc import Sequence
from html import escape

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from bttlab.lab.charts import (
    DOTS_PER_INCH,
    NUMBERS,
    PALETTE,
    SMOOTHING,
    draw_band,
    draw_megabytes,
    round_up,
    smooth,
    style,
    thinned,
)
from bttlab.lab.comparison import over
from bttlab.lab.dashboard_runs import ACCOUNTINGS, MARKS, DashboardRun
from bttlab.lab.hover import PAPER
from bttlab.lab.picture import SWATCH_CLASS
from bttlab.runs.scores import scores_in_words

SIZE = (4.15, 4.2)  # inches: with the controls it fits a window of 1400 x 900 beside JupyterLab's file browser
SCORES = (("intent_accuracy", "intent accuracy", "-"), ("slot_f1", "slot F1", "--"), ("frame_accuracy", "frame", ":"))
_SHAPES = dict(zip(MARKS, ("^", "D", "s", "<"), strict=True))  # of marks
_MARK_NAMES = dict(zip(MARKS, ("new rate", "pause", "stop", "back"), strict=True))
_SMALL = {"fontsize": 9}
_WORDS = {"break_long_words": False, "break_on_hyphens": False}  # of textwrap: lines end between words
MOST_PERCENT = 120  # of the dev split's axis: the legend stands above 100
ACROSS = {  # a panel's horizontal axis
    "samples": "samples trained on",
    "time": "time on the device (s)",
    "energy": "energy (J)",
    "here": "time on this computer (s, measured)",
}


class DashboardFigure:
    """Four panels in two figures, which stand side by side, or one below the other in a narrow window.

    Every run has a number and a colour, which `bttlab.lab.dashboard_figure.legend` names. `figure` has loss and dev
    split, `right` has memory and energy.
    """

    def __init__(self) -> None:
        self.figure, self.right = (Figure(figsize=SIZE, dpi=DOTS_PER_INCH, facecolor="white") for _ in range(2))
        place = {"left": 0.155, "right": 0.91, "bottom": 0.13, "top": 0.935, "hspace": 0.6}
        self.loss, self.dev = self.figure.subplots(2, 1, gridspec_kw=place)
        self.memory, self.energy = self.right.subplots(2, 1, gridspec_kw=place)
        self._view = ""
        self._limits: dict[Axes, tuple] = {}  # as `update` set them: others are the user's, who has zoomed
        self.update([])

    def update(
        self, runs: Sequence[DashboardRun], across: str = "samples", memory: str = "footprint", draw: str = "energy"
    ) -> None:
        """Draw runs over one of `ACROSS`, with one of `ACCOUNTINGS`, and "energy" or "power"."""
        panels = self.loss, self.dev, self.memory, self.energy
        zoomed = {axes: _limits(axes) for axes in panels if self._limits.get(axes, _limits(axes)) != _limits(axes)}
        if (view := f"{across} {memory} {draw}") != self._view:
            zoomed = {}
        self._view = view
        for axes in panels:
            axes.clear()
        self._draw_loss(runs, across)
        self._draw_dev(runs, across)
        self._draw_memory(runs, memory)
        self._draw_energy(runs, across if across in ("time", "here") else "samples", draw == "power")
        self._limits = {axes: _limits(axes) for axes in panels}
        for axes, (x, y) in zoomed.items():
            axes.set(xlim=x, ylim=y)

    def _style(self, axes: Axes, title: str, y_label: str, across: str, runs: Sequence[DashboardRun]) -> None:
        style(axes, title, ACROSS[across], y_label)
        axes.xaxis.set_major_formatter(NUMBERS)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.set_xlim(0, max((_extent(run, across) for run in runs), default=100))

    def _draw_loss(self, runs: Sequence[DashboardRun], across: str) -> None:
        axes, kinds, tops = self.loss, set(), []
        self._style(axes, f"Loss, and mean of {SMOOTHING} (measured)", "loss", across, runs)
        for number, (run, colour) in enumerate(coloured(runs), 1):
            losses = run.losses
            means, shown = smooth(losses), thinned(losses)
            x = run.at(shown + 1, across)
            axes.plot(x, losses[shown], color=colour, alpha=0.22, linewidth=0.6)
            axes.plot(x, means[shown], color=colour, linewidth=2, label=f"{number}")
            if len(losses):
                tops.append(max(1.0, 1.1 * float(np.quantile(losses, 0.99))))
            for count, kind in list(run.marks):
                at_the_bottom = {"transform": axes.get_xaxis_transform(), "clip_on": False}
                axes.plot(run.at([count], across), [0], _SHAPES[kind], color=colour, gid=kind, **at_the_bottom)
                kinds.add(kind)
        axes.set_ylim(0, round_up(max(tops, default=8.0)))
        handles = [
            Line2D([], [], color="0.3", marker=_SHAPES[kind], linestyle="", markersize=5, label=_MARK_NAMES[kind])
            for kind in MARKS
            if kind in kinds
        ]
        if handles:
            axes.legend(handles=handles, loc="upper right", frameon=False, ncols=3, **_SMALL)
        if not runs:
            _note(axes, "Nothing has been started yet.")

    def _draw_dev(self, runs: Sequence[DashboardRun], across: str) -> None:
        unscored = "; not of records" * any(not run.is_scored for run in runs)
        self._style(self.dev, f"Dev split (measured{unscored})", "right (%)", across, runs)
        for number, (run, colour) in enumerate(coloured(runs), 1):
            scores = list(run.scores)
            x = run.at([count for count, _ in scores], across)
            for name, _, line in SCORES:
                values = [100 * found.get(name, np.nan) for _, found in scores]
                self.dev.plot(x, values, color=colour, linestyle=line, marker="o", markersize=3, label=f"{number}")
        end = 1.02 * self.dev.get_xlim()[1]  # a whole dot at the end, and at 0
        self.dev.xaxis.set_major_locator(MaxNLocator(5))
        self.dev.set(xlim=(0, end), ylim=(-3, MOST_PERCENT), yticks=range(0, 101, 20))
        handles = [Line2D([], [], color="0.3", linestyle=line, label=label) for _, label, line in SCORES]
        close = {"borderaxespad": 0.1, "borderpad": 0.2, "columnspacing": 1.2}  # above the line at 100
        self.dev.legend(handles=handles, loc="upper left", frameon=False, ncols=3, **close, **_SMALL)

    def _draw_memory(self, runs: Sequence[DashboardRun], accounting: str) -> None:
        style(self.memory, f"Memory: {brief(ACCOUNTINGS[accounting])}", "MB ($10^6$ bytes)", "")
        rows = []
        for number, (run, colour) in enumerate(coloured(runs), 1):
            if found := run.memory.get(accounting):
                band = found.value if found.low is None else found.low, found.value, found.high or found.value
                rows.append((f"{number}: {found.value / 1e6:,.1f} MB ({found.provenance})", colour, band))
            else:  # greyed: it does not compare
                rows.append((f"{number}: {'known at the end' if run.active else 'not measured'}", "0.55", None))
        draw_megabytes(self.memory, rows)
        self.memory.xaxis.set_major_formatter(NUMBERS)

    def _draw_energy(self, runs: Sequence[DashboardRun], across: str, is_power: bool) -> None:
        axes, top, missing = self.energy, 0.0, {}
        self._style(axes, "Power (W)" if is_power else "Energy so far (J)", "", across, runs)
        axes.yaxis.set_major_formatter(NUMBERS)
        for number, (run, colour) in enumerate(coloured(runs), 1):
            if not run.meter.provenance:
                missing.setdefault(run.meter.how, []).append(str(number))
                continue
            history = np.array(run.history)
            history = history[thinned(history)]
            counts, band = history[:, 0], history[:, 2:5]
            if is_power:
                counts, band = _watts(history)
            draw_band(axes, run.at(counts, across), band.T, colour, f"{number}")
            top = max(top, 1.25 * float(band[:, 2].max(initial=0)))
        axes.set_ylim(0, round_up(top or 1.0))
        parts = [f"none of {', '.join(numbers)}: {reason}" for reason, numbers in missing.items()]
        _note(axes, "\n".join(textwrap.fill(part, 34, **_WORDS) for part in parts), corner=top > 0)


def _watts(history: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return sample counts, and the mean power since the count before: low, middle, high."""
    step = max(1, len(history) // 60)
    rows = history[::-step][::-1]
    seconds = np.diff(rows[:, 1])
    known = seconds > 0
    return rows[1:, 0][known], np.diff(rows[:, 2:5], axis=0)[known] / seconds[known, None]


def brief(words: str) -> str:
    """Return the words before a bracket: the name in a menu, or a title."""
    return words.partition(" (")[0]


def coloured(runs: Sequence[DashboardRun]) -> list[tuple[DashboardRun, str]]:
    return [(run, PALETTE[place % len(PALETTE)]) for place, run in enumerate(runs)]


def _limits(axes: Axes) -> tuple[tuple[float, float], tuple[float, float]]:
    return axes.get_xlim(), axes.get_ylim()


def _extent(run: DashboardRun, across: str) -> float:
    """Return the end of a run on an axis: where its data end. A long run's first minutes fill the panel."""
    if across == "samples":
        return max(run.count, 1)
    ends = {"time": run.device_seconds, "energy": run.meter.joules[1], "here": run.seconds}
    return round_up(max(1e-3, ends[across]))


def _note(axes: Axes, text: str, corner: bool = False) -> None:
    """Write a note into the middle of a panel, or into its upper left corner, which rising lines leave free."""
    x, y, ha, va = (0.03, 0.97, "left", "top") if corner else (0.5, 0.5, "center", "center")
    axes.text(x, y, text, transform=axes.transAxes, ha=ha, va=va, color="0.35", bbox=PAPER if text else None, **_SMALL)


def _label(number: int, run: DashboardRun) -> str:
    if run.meter.provenance == run.time_provenance:
        known = f"time and energy {run.time_provenance}"
    else:
        energy = f"energy {run.meter.provenance}" if run.meter.provenance else "no energy"
        known = f"time {run.time_provenance}, {energy}"
    return f"{number} {run.name}, {run.setting}; {known}"


def legend(runs: Sequence[DashboardRun]) -> str:
    """Return what the colours and numbers of the figure are, as HTML."""
    look = "display:inline-block;width:1.3em;height:3px;vertical-align:middle;margin-right:6px;background:"
    return "".join(
        f"<div style='line-height:1.35'><span class='{SWATCH_CLASS}' style='{look}{colour}'></span>"
        f"{escape(_label(number, run))}</div>"
        for number, (run, colour) in enumerate(coloured(runs), 1)
    )


def describe_runs(runs: Sequence[DashboardRun]) -> str:
    if not runs:
        return "Loss, dev split, memory and energy over training: nothing has been started yet."
    said = []
    for number, run in enumerate(runs, 1):
        parts = [f"{_label(number, run)}: {run.state} after {run.count:,} of {run.total:,} samples"]
        if run.count:
            mean = run.losses[-SMOOTHING:].mean()
            parts.append(f"mean of the last {SMOOTHING} losses {mean:.2f} (measured)")
        if run.scores:
            parts.append(f"on the dev split {scores_in_words(run.scores[-1][1])} (measured)")
        for name, found in run.memory.items():
            parts.append(f"{found.value / 1e6:,.1f} MB {ACCOUNTINGS[name]} ({found.provenance})")
        if run.meter.provenance:
            parts.append(f"{run.meter.joules[1]:,.1f} J ({run.meter.provenance})")
        said.append("; ".join(parts))
    return "Loss, dev split, memory and energy over training. " + ". ".join(said) + "."


def ratios(runs: Sequence[DashboardRun], accounting: str) -> list[str]:
    """Return the ratios of each GPU run to the last run on a U50: energy per sample, and memory in one accounting."""
    card = next((run for run in reversed(runs) if run.published and run.count and run.meter.provenance), None)
    lines = []
    for number, run in enumerate(runs, 1):
        if card is None or run is card or run.published or not (run.count and run.meter.provenance):
            continue
        low, middle, high = over(*([joules / side.count for joules in side.meter.joules] for side in (run, card)))
        provenance = " / ".join(side.meter.provenance for side in (run, card))
        line = f"energy per sample: {run.name} / {card.name} = {middle:.2g} x ({low:.2g} to {high:.2g}; {provenance})"
        if accounting in run.memory and accounting in card.memory:
            there, here = run.memory[accounting], card.memory[accounting]
            line += (
                f"; memory: {there.value / 1e6:,.1f} MB / {here.value / 1e6:,.1f} MB = {there.value / here.value:.2g} x"
            )
            band = "" if there.low is None else f"{there.low / here.value:.2g} to {there.high / here.value:.2g}; "
            line += f" ({band}{there.provenance} / {here.provenance})"
        lines.append(f"{number}: {line}")
    return [*lines, str(card.published)] if card else []
