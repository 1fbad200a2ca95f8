"""The dashboard: start, pause, continue and stop training, and watch it.

Three kinds of threads meet here. The notebook's own (or, in JupyterLab, one for widgets) calls what a button does; a
run trains in its thread; and as long as a run is going, one thread redraws the figure. Buttons therefore work, and the
figure moves, while other cells compute. One lock keeps the three apart; the run's thread never takes it.
"""

import atexit
import functools
import threading
import time
from collections.abc import Callable, Sequence
from html import escape

import ipywidgets as widgets
from IPython.display import display

from bttlab.errors import BttlabError
from bttlab.lab.canvas import KeptFigure, live_canvas
from bttlab.lab.run_figure import RunFigure
from bttlab.lab.runs import FAILED, FINISHED, PAUSED, RUNNING, STOPPED, Run
from bttlab.lab.targets import Target
from bttlab.threads import Thread

REDRAW_SECONDS = 0.4
KEEP_SECONDS = 15.0  # between two updates of the figure that stays in the notebook
STOP_SECONDS = 2.0  # that closing waits for a run to end
_open: dict[str, "Dashboard"] = {}


def _button(action: Callable) -> Callable:
    """Make what a button does say in the dashboard what went wrong; the next click works."""

    @functools.wraps(action)
    def guarded(self, *arguments, **keywords) -> None:
        try:
            with self._lock:
                self._say("")
                action(self, *arguments, **keywords)
        except BttlabError as error:
            self._say(str(error))
        except KeyboardInterrupt:
            self._say(f"{action.__name__} was interrupted; click again")
        except Exception as error:
            self._say(f"{action.__name__} did not work ({type(error).__name__}: {error}); click again")

    return guarded


class Dashboard:
    """Training under control: make one, and let it be the last line of a cell.

    Parameters
    ----------
    targets : sequence of Target
        What there is to train on: `card_target`, `baseline_targets`.
    samples, learning_rate : int, float
        Where the sliders stand at first.
    most_samples : int
        Where the samples' slider ends.
    name : str
        A new dashboard of the same name closes the one before, as when its cell is run again.

    Attributes
    ----------
    runs : list of Run
        In the order of their start.
    widget : ipywidgets.Widget
    """

    def __init__(
        self,
        targets: Sequence[Target],
        samples: int = 4_500,
        learning_rate: float = 4e-3,
        most_samples: int = 45_000,
        name: str = "dashboard",
    ):
        if name in _open:
            _open[name].close()
        self.runs: list[Run] = []
        self._name = name
        self._targets = {target.name: target for target in targets}
        self._lock = threading.RLock()
        self._drawer: Thread | None = None
        self._drawing = False
        self._figure = RunFigure()
        self._canvas = live_canvas(self._figure.figure, lambda: self._figure.animated, self._lock)
        self._kept = KeptFigure()
        self._build(samples, learning_rate, most_samples)
        self._draw()
        _open[name] = self

    def _build(self, samples: int, learning_rate: float, most_samples: int) -> None:
        wide = {"description_width": "90px"}
        self._choice = widgets.Dropdown(
            options=list(self._targets), description="train on", style=wide, layout={"width": "340px"}
        )
        self._rate = widgets.FloatLogSlider(
            learning_rate,
            min=-5,
            max=0,
            step=0.05,
            description="learning rate",
            readout_format=".1e",
            style=wide,
            layout={"width": "380px"},
        )
        self._samples = widgets.IntSlider(
            min(samples, most_samples),
            min=100,
            max=most_samples,
            step=100,
            description="samples",
            readout_format=",d",
            style=wide,
            layout={"width": "380px"},
        )
        self._rate.observe(lambda _: self._change_rate(), "value")
        buttons = []
        for label, icon, action in (
            ("Start", "play", self.start),
            ("Pause", "pause", self.pause),
            ("Continue", "step-forward", self.resume),
            ("Stop", "stop", self.stop),
            ("Clear", "trash", self.clear),
        ):
            button = widgets.Button(description=label, icon=icon, layout={"width": "105px"})
            button.on_click(lambda _, action=action: action())
            buttons.append(button)
        self._status, self._message = widgets.HTML(), widgets.HTML()
        self.widget = widgets.VBox(
            [
                widgets.HBox([self._choice, self._rate, self._samples], layout={"flex_flow": "row wrap"}),
                widgets.HBox(buttons),
                self._status,
                self._message,
                self._canvas.widget,
            ]
        )
        self.widget.add_class(self._kept.live_class)

    def _ipython_display_(self) -> None:
        display(self.widget)
        self._kept.display()
        if self.runs:
            self._keep()

    # --- what buttons do; as methods they do the same

    @_button
    def start(self, target: str | None = None, samples: int | None = None) -> None:
        """Start a run on what is chosen, with the sliders' learning rate and samples.

        Parameters
        ----------
        target : str, optional
            Choose this one first.
        samples : int, optional
            Set the slider first.
        """
        active = self._active
        if active is not None:
            raise BttlabError(f"{active.name} is {active.state}: stop it, or let it end, before you start another run")
        if target is not None:
            if target not in self._targets:
                raise BttlabError(f"there is no {target!r} to train on; choose one of: {'; '.join(self._targets)}")
            self._choice.value = target
        if samples is not None:
            self._samples.value = samples
        run = self._targets[self._choice.value].make_run(self._samples.value, self._learning_rate)
        run.start()
        self.runs.append(run)
        self._begin_drawing()

    def _begin_drawing(self) -> None:
        if not self._drawing:
            self._drawing = True
            self._drawer = Thread(target=self._follow, args=(self._drawer,), name="bttlab-lab-draw", daemon=True)
            self._drawer.start()

    @_button
    def pause(self) -> None:
        """Hold the run before its next samples."""
        run = self._the_active("pause")
        if run.state == PAUSED:
            raise BttlabError(f"{run.name} is paused already: continue or stop it")
        run.pause()

    @_button
    def resume(self) -> None:
        """Go on after a pause; or, with a lower learning rate, from before the sample of a numerical fault."""
        if self._active is None and self.runs and self.runs[-1].fault is not None:
            self._go_on(self.runs[-1])
            return
        run = self._the_active("continue")
        if run.state == RUNNING:
            raise BttlabError(f"{run.name} is running already: pause or stop it")
        run.resume()

    def _go_on(self, run: Run) -> None:
        if self._learning_rate >= run.fault.learning_rate:
            raise BttlabError(
                f"learning rate {self._learning_rate:g}: at {run.fault.learning_rate:g} sample {run.fault.sample} "
                "would fail again; set the slider lower, then Continue"
            )
        run.learning_rate = self._learning_rate
        run.start()
        self._begin_drawing()

    @_button
    def stop(self) -> None:
        """End the run before its next samples; what it has learned stays on the card."""
        self._the_active("stop").stop()

    @_button
    def clear(self) -> None:
        """Take the runs that have ended out of the figure."""
        self.runs[:] = [run for run in self.runs if run.active]
        self._draw()

    @_button
    def _change_rate(self) -> None:
        run = self._active
        if run is not None and not run.follows_learning_rate:
            raise BttlabError(f"{run.name} keeps its learning rate to the end; the new one is for the next run")
        if run is not None:
            run.learning_rate = self._learning_rate

    def offer(self, target: Target) -> None:
        """Put a target into the choice, in place of one of the same name."""
        with self._lock:
            self._targets[target.name] = target
            self._choice.options = list(self._targets)

    def add(self, run: Run) -> None:
        """Put a run that has ended elsewhere, such as a `RecordedRun`, into the figure."""
        with self._lock:
            self.runs.append(run)
            self._draw()
            if self._active is None:
                self._keep()

    def wait(self, timeout: float | None = None) -> None:
        """Let the cell wait until the run has ended and its figure stands; interrupting the kernel stops the run."""
        drawer, run = self._drawer, self._active
        if drawer is None:
            return
        try:
            drawer.join(timeout)
        except KeyboardInterrupt:
            if run is not None:
                run.stop()
            drawer.join(STOP_SECONDS)
            self._say("interrupted: the run was stopped")

    def close(self) -> None:
        """Stop what is running and take the widgets off the page; the figure stays in the notebook."""
        for run in self.runs:
            run.stop()
        for run in self.runs:
            run.join(STOP_SECONDS)
        if self._drawer is not None:
            self._drawer.join(STOP_SECONDS)
        self._canvas.close()
        self.widget.close()
        if _open.get(self._name) is self:
            del _open[self._name]

    # --- the drawing thread

    def _follow(self, before: Thread | None) -> None:
        """Redraw until the run has ended, and once more; first let the thread before this one finish its last."""
        if before is not None:
            before.join()
        kept = time.monotonic()
        while True:
            begin = time.monotonic()
            with self._lock:
                over = self._active is None
                if over:
                    self._drawing = False
            self._draw()
            if over:
                self._keep()
                return
            if begin - kept > KEEP_SECONDS:
                self._keep()
                kept = begin
            run = self._active
            if run is not None:
                run.join(max(0.05, begin + REDRAW_SECONDS - time.monotonic()))

    def _draw(self) -> None:
        with self._lock:
            everything = self._figure.update(self.runs)
            self._status.value = _status(self.runs[-1]) if self.runs else "Choose what to train on, and start."
            if self.runs and self.runs[-1].state == FAILED:
                self._say(_what_failed(self.runs[-1]))
        self._canvas.draw(everything)

    def _keep(self) -> None:
        names = ", ".join(dict.fromkeys(run.name for run in self.runs))
        self._kept.update(self._figure.figure, self._lock, f"The last figure of the runs on {names}")

    # --- the rest

    @property
    def _learning_rate(self) -> float:
        """As the slider shows it: who reads 4.0e-3 there trains with 0.004."""
        return float(f"{self._rate.value:.1e}")

    @property
    def _active(self) -> Run | None:
        return next((run for run in self.runs if run.active), None)

    def _the_active(self, action: str) -> Run:
        run = self._active
        if run is None:
            raise BttlabError(f"there is nothing to {action}: no run is going; start one first")
        return run

    def _say(self, message: str) -> None:
        self._message.value = f"<span role='alert'><b>{escape(message)}</b></span>" if message else ""


def _what_failed(run: Run) -> str:
    if run.fault is None:
        return run.error
    return (
        f"{run.error}. Set the learning rate's slider below {run.fault.learning_rate:g}, and Continue goes on from "
        f"sample {run.fault.sample}"
    )


def _status(run: Run) -> str:
    parts = [f"<b>{escape(run.name)}</b>: {run.state}", f"{run.count:,} of {run.total:,} samples"]
    if run.rate:
        parts.append(f"{run.rate:,.0f} samples/s ({run.time_provenance})")
        if run.active:
            parts.append(f"{_duration((run.total - run.count) / run.rate)} left")
    if run.meter.provenance:
        parts.append(f"{run.meter.joules:,.1f} J so far ({run.meter.provenance}: {escape(run.meter.how)})")
    else:
        parts.append(f"energy: none, {escape(run.meter.how)}")
    if run.scores and run.state in (FINISHED, STOPPED):
        _, last = run.scores[-1]
        parts.append(f"dev: intent {last.intent_accuracy:.1%}, slot F1 {last.slot_f1:.1%} (measured)")
    return " · ".join(parts)


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


@atexit.register
def _close_all() -> None:
    for dashboard in list(_open.values()):
        dashboard.close()
