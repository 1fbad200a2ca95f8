"""A sweep in a notebook, in the background, with a Pareto figure."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import ipywidgets as widgets
from matplotlib.axes import Axes

from bttlab.lab.canvas import LiveFigures
from bttlab.lab.charts import PALETTE, as_label, new_figure, pareto_front, style
from bttlab.lab.explorer import button, row
from bttlab.lab.frame import Frame
from bttlab.lab.picture import alert, hidden, until_stale
from bttlab.lab.picture import describe as describe_figure
from bttlab.runs import runs_folder
from bttlab.runs.record import COMPLETE, RunRecord
from bttlab.runs.sweep import Progress, Sweep, SweepSpec, open_executor
from bttlab.util.errors import BttlabError
from bttlab.util.threads import Thread

MEMORY = ("u50.memory_bytes", "on-chip memory (MB, modelled)", 1e-6)
# Of a training, what it costs is what a U50 would need for it.
PANELS = {
    "training": (("u50.joules", "energy of a U50 (J, modelled)", 1.0), MEMORY),
    "estimate": (("u50.seconds_per_epoch", "time of an epoch (s, modelled)", 1.0), MEMORY),
}
STOP_SECONDS = 60.0
NAME_PIXELS = 60, 11  # of a text beside a point
MOST_NAMED = 20  # trials that are all named; of more only those that none beats


class SweepView:
    """Widget that runs a sweep in the background; display it, then press Start.

    Parameters
    ----------
    spec : SweepSpec
        Of the sweep.
    folder : path, optional
        By default one of the sweep's name among the user's runs.
    workers : int, optional
        Processes on this machine; by default what cores and memory allow.
    """

    def __init__(self, spec: SweepSpec, folder: Path | None = None, workers: int | None = None):
        self.sweep = Sweep(spec, folder or runs_folder() / spec.name)
        self._workers = workers
        self._figures = [new_figure(4.15, 3.5) for _ in range(2)]
        self._panels = [figure.subplots() for figure in self._figures]
        self._live = LiveFigures(self._figures)
        self._status, self._words = widgets.HTML(), widgets.HTML()
        self._start = button("Start", "play", self.start)
        self._stop = button("Stop", "stop", lambda: self.sweep.stop(), disabled=True)
        self.widget = Frame([row(self._start, self._stop), self._status, self._live.widget, self._words])
        self._thread: Thread | None = None
        self._show(self._progress)

    @property
    def trials(self) -> list[RunRecord]:
        """The trials that are complete, in the order in which they ended."""
        return [record for record in self.sweep.progress.records.values() if record.status == COMPLETE]

    def start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self.sweep = Sweep(self.sweep.spec, self.sweep.folder)  # the one before may have been stopped
            self._stop.disabled, self._start.disabled = False, True  # in this order: the focus goes on to *Stop*
            self._thread = Thread(target=self._run, name="bttlab-sweep", daemon=True)
            self._thread.start()

    def wait(self) -> Progress:
        """Wait for the end and return the progress; interrupting the kernel stops the sweep."""
        try:
            while self._thread is not None and self._thread.is_alive():
                self._thread.join(0.5)
        except KeyboardInterrupt:
            self.sweep.stop()
            self._thread.join(STOP_SECONDS)
        return self.sweep.progress

    def _run(self) -> None:
        self._status.value = until_stale("Starting workers …")
        try:
            with open_executor(workers=self._workers) as executor:
                self.sweep.run(executor, lambda _: self._show(until_stale(self._progress)))
            self._status.value = self._progress
        except Exception as error:  # else the view would say for ever that workers start
            self._status.value = alert(str(error) if isinstance(error, BttlabError) else repr(error))
        finally:
            self._start.disabled, self._stop.disabled = False, True
        self._live.keep(f"Trials of the sweep {self.sweep.spec.name}. {describe_figure(*self._figures)}")

    @property
    def _progress(self) -> str:
        return escape(self.sweep.progress.in_words())

    def _show(self, state: str) -> None:
        with self._live.lock:
            for axes, panel in zip(self._panels, PANELS[self.sweep.spec.kind], strict=True):
                self._draw(axes, *panel)
            self._words.value = hidden(*map(describe_figure, self._figures))
        self._status.value = state
        self._live.draw()

    def _draw(self, axes: Axes, cost: str, label: str, scale: float) -> None:
        spec, progress = self.sweep.spec, self.sweep.progress
        axes.clear()
        style(axes, "", label, as_label(f"{spec.objective} ({_provenance(progress, spec.objective)})"))
        points = {
            record.id: (scale * record.value(cost), record.value(spec.objective))
            for record in progress.records.values()
            if record.status == COMPLETE and None not in (record.value(cost), record.value(spec.objective))
        }
        if not points:
            return
        axes.scatter(*zip(*points.values(), strict=True), s=24, color=PALETTE[0], label="trial")
        front = pareto_front(list(points.values()), spec.maximize)
        ring = {"marker": "o", "markersize": 9, "markerfacecolor": "none"}  # a front may be a single point
        axes.plot(*zip(*front, strict=True), color=PALETTE[0], linewidth=1, **ring, label="none better")
        if (best := progress.best) is not None and best.id in points:
            axes.scatter(*points[best.id], s=150, facecolors="none", edgecolors=PALETTE[1], linewidths=2, label="best")
        axes.margins(0.25, 0.12)
        if not any(objective for _, objective in points.values()):  # scores of models that have learned nothing yet
            axes.set_ylim(-0.05, 1.05)
        axes.locator_params("x", nbins=5)
        names = as_label(", ".join(spec.vary))
        above = {"loc": "lower center", "bbox_to_anchor": (0.45, 1.0), "ncols": 3, "columnspacing": 1.0}
        axes.legend(**above, fontsize=8, frameon=False, title=f"at the points: {names}", title_fontsize=8)
        named = points if len(points) <= MOST_NAMED else {id: points[id] for id in points if points[id] in front}
        texts = {
            id: ", ".join(_value(progress.records[id].configuration.get(key)) for key in spec.vary) for id in named
        }
        _name_points(axes, [(*points[id], as_label(text)) for id, text in texts.items()])

    def _ipython_display_(self) -> None:
        self._live.display(self.widget)


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _name_points(axes: Axes, points: Sequence[tuple[float, float, str]]) -> None:
    """Write a text beside each point; of points close together the upper texts are moved up."""
    taken: list[tuple[float, float]] = []  # pixels
    for cost, objective, text in sorted(points):
        left, bottom = axes.transData.transform((cost, objective))
        height = bottom
        while any(abs(left - x) < NAME_PIXELS[0] and abs(height - y) < NAME_PIXELS[1] for x, y in taken):
            height += 1
        taken.append((left, height))
        place = 9, (height - bottom) * 72 / axes.figure.dpi
        axes.annotate(text, (cost, objective), place, textcoords="offset points", va="center", fontsize=8)


def _provenance(progress: Progress, name: str) -> str:
    provenances = {record.figures[name]["provenance"] for record in progress.records.values() if name in record.figures}
    return ", ".join(sorted(map(str, provenances))) or "none yet"
