"""The dashboard: start, pause, continue and stop training, and watch it.

Three kinds of threads work here. The main thread (in JupyterLab a widget thread) executes the buttons' actions, a run
trains in its own thread, and one thread redraws the figure while a run is active. So buttons work and the figure moves
while other cells compute. One lock separates them; the run's thread never takes it.
"""

import atexit
import time
from collections.abc import Sequence
from html import escape
from math import ceil, floor, inf, log10
from numbers import Integral

import ipywidgets as widgets

from bttlab.lab.canvas import LiveFigures
from bttlab.lab.dashboard_figure import ACROSS, DashboardFigure, brief, describe_runs, legend, ratios
from bttlab.lab.dashboard_runs import ACCOUNTINGS, FAILED, FINISHED, PAUSED, RUNNING, STOPPED, BesideRun, DashboardRun
from bttlab.lab.dashboard_targets import Target
from bttlab.lab.explorer import button, control, guarded, row
from bttlab.lab.frame import Frame
from bttlab.lab.picture import alert, hidden, until_stale
from bttlab.model import LEARNING_RATES
from bttlab.runs.scores import scores_in_words
from bttlab.util.errors import BttlabError
from bttlab.util.threads import Thread

REDRAW_SECONDS = 1.0  # a drawing takes a tenth of it
KEEP_SECONDS = 15.0  # between two updates of the figure that stays in the notebook
STOP_SECONDS = 10.0  # that closing waits for a run to end and to be saved
_open: dict[str, "Dashboard"] = {}


class Dashboard:
    """Start, control and watch training runs. Make one the last line of a cell.

    A new dashboard closes an older one of the same name, as when its cell is run again.

    Parameters
    ----------
    targets : sequence of Target
        From `card_target`, `card_and_gpu_target` or `baseline_targets`.
    samples : int
        Of a run, as the control begins with.
    learning_rate : float
        As the control begins with.
    most_samples : int
        Most samples of a run.
    name : str
        Of the dashboard.
    accounting : str
        With which the memory panel begins, one of `bttlab.lab.dashboard_runs.ACCOUNTINGS`.

    Attributes
    ----------
    runs : list of DashboardRun
        In the order of their start.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        samples: int = 4_500,
        learning_rate: float = LEARNING_RATES["sgd"],
        most_samples: int = 45_000,
        name: str = "dashboard",
        accounting: str = "footprint",
    ):
        if name in _open:
            _open[name].close()
        self.runs: list[DashboardRun] = []
        self._name = name
        self._targets = {target.name: target for target in targets}
        self._drawer: Thread | None = None
        self._drawing = False
        self._next: list[str] = []  # targets of runs that begin when this one has ended
        self._said_in = (0, "")
        self._is_to_suit = False  # the rate, to an optimizer that was chosen during a run
        self._figure: DashboardFigure | None = DashboardFigure()  # None: closed
        self._live = LiveFigures([self._figure.figure, self._figure.right])
        self._lock = self._live.lock
        self._build(samples, learning_rate, most_samples, accounting)
        self._draw()
        _open[name] = self

    def _build(self, samples: int, learning_rate: float, most_samples: int, accounting: str) -> None:
        self._choice = control(widgets.Dropdown, "train on", "530px", 90, options=list(self._targets))
        if not 0 < learning_rate < inf:
            raise BttlabError(f"learning_rate is {learning_rate!r}: give a number above 0")
        # of the logarithm: 3e-4, 4e-4 and 4e-3 are read as such; a slider would move a value that is not on it
        power = log10(learning_rate)
        log = {"min": min(-5, floor(power)), "max": max(0, ceil(power)), "step": 0.02}
        self._rate = control(
            widgets.FloatLogSlider, "learning rate", "380px", 90, value=learning_rate, readout_format=".1e", **log
        )
        _check_count(samples)
        counts = {"value": samples, "min": min(samples, 100), "max": max(samples, most_samples), "step": 100}
        self._samples = control(widgets.IntSlider, "samples", "380px", 90, readout_format=",d", **counts)
        self._optimizer = control(widgets.Dropdown, "optimizer", "220px", 90)
        self._seed = control(widgets.BoundedIntText, "seed", "115px", 40, min=0, max=2**31 - 1)
        self._offer_choices()
        self._choice.observe(lambda _: self._offer_choices(), "value")
        self._optimizer.observe(lambda _: self._suit_rate(), "value")
        self._rate.observe(lambda _: self._change_rate(), "value")
        self._buttons = {}
        for label, icon, action in (
            ("Start", "play", self.start),
            ("Pause", "pause", self.pause),
            ("Continue", "step-forward", self.resume),
            ("Stop", "stop", self.stop),
            ("Clear", "trash", self.clear),
        ):
            self._buttons[label] = button(label, icon, action)
        kinds, axes = ([(brief(words), name) for name, words in table.items()] for table in (ACCOUNTINGS, ACROSS))
        self._view = {
            "across": control(widgets.Dropdown, "across", "230px", 50, options=axes),
            "memory": control(widgets.Dropdown, "memory", "200px", 60, options=kinds, value=accounting),
            "draw": control(widgets.Dropdown, "draw", "150px", 40, options=["energy", "power"]),
        }
        for menu in self._view.values():
            menu.observe(lambda _: self._draw(), "value")
        self._status, self._message, self._legend, self._ratios = (widgets.HTML() for _ in range(4))
        self._words = widgets.HTML(hidden(describe_runs([])))
        parts = [
            row(self._choice, self._optimizer, self._seed, self._rate, self._samples),
            row(*self._buttons.values()),
            self._status,
            self._message,
            self._live.widget,
            self._legend,
            row(*self._view.values()),
            self._ratios,
            self._words,
        ]
        self.widget = Frame(parts)

    def _ipython_display_(self) -> None:
        self._live.display(self.widget)
        if self.runs:
            self._keep()

    # --- the buttons' actions

    @guarded
    def start(self, target: str | None = None, samples: int | None = None) -> None:
        """Start a run with the values of the controls."""
        self._start(target, samples)

    @guarded
    def start_all(self, targets: Sequence[str], samples: int | None = None) -> None:
        """Start a run on each target, one after the other; one that is stopped or fails is the last."""
        self._start(targets[0], samples)
        self._next = list(targets[1:])

    def _start(self, target: str | None, samples: int | None) -> None:
        active = self._active
        if active is not None:
            raise BttlabError(f"{active.name} is {active.state}: stop it, or let it end, before you start another run")
        if target is not None:
            if target not in self._targets:
                raise BttlabError(f"there is no {target!r} to train on; choose one of: {'; '.join(self._targets)}")
            self._choice.value = target
        if samples is not None:
            _check_count(samples)
            self._samples.min, self._samples.max = min(samples, self._samples.min), max(samples, self._samples.max)
            self._samples.value = samples
        if self._is_to_suit:
            self._suit_rate()
        chosen = self._targets[self._choice.value]
        choices = (self._optimizer.value, self._seed.value) if chosen.optimizers else ()
        run = chosen.make_run(self._samples.value, self.learning_rate, *choices)
        run.start()
        self.runs += [run] if run.beside is None else [run, run.beside]
        self._begin_drawing()

    def _begin_drawing(self) -> None:
        if not self._drawing:
            self._drawing = True
            self._drawer = Thread(target=self._follow, args=(self._drawer,), name="bttlab-lab-draw", daemon=True)
            self._drawer.start()

    @guarded
    def pause(self) -> None:
        """Pause the run before its next samples."""
        run = self._the_active("pause")
        if run.state == PAUSED:
            raise BttlabError(f"{run.name} is paused already: continue or stop it")
        run.pause()

    @guarded
    def resume(self) -> None:
        """Resume after a pause or a stop or, with a lower learning rate, from before a numerical fault's sample."""
        if self._resting is not None:
            self._go_on(self._resting)
            return
        run = self._the_active("continue")
        if run.state == RUNNING:
            raise BttlabError(f"{run.name} is running already: pause or stop it")
        run.resume()

    def _go_on(self, run: DashboardRun) -> None:
        if run.fault is not None and self.learning_rate >= run.fault.learning_rate:
            raise BttlabError(
                f"learning rate {self.learning_rate:g}: at {run.fault.learning_rate:g} sample {run.fault.sample} "
                "would fail again; set the slider lower, then Continue"
            )
        run.learning_rate = self.learning_rate
        run.start()
        self._begin_drawing()

    @guarded
    def stop(self) -> None:
        """Stop the run before its next samples; the trained parameters stay on the card."""
        self._the_active("stop").stop()

    @guarded
    def clear(self) -> None:
        """Remove the runs that have ended from the figure."""
        self.runs[:] = [run for run in self.runs if run.active]
        self._draw()

    @guarded
    def _change_rate(self) -> None:
        run = self._active
        if run is not None and not run.follows_learning_rate:
            raise BttlabError(f"{run.name} keeps its learning rate to the end; the new one is for the next run")
        if run is not None:
            run.learning_rate = self.learning_rate
        else:
            self._is_to_suit = False

    def _offer_choices(self) -> None:
        offered = self._targets[self._choice.value].optimizers
        chosen = self._optimizer.value if self._optimizer.value in offered else next(iter(offered), None)
        self._optimizer.options = offered
        self._optimizer.value = chosen
        for widget in (self._optimizer, self._seed):
            widget.layout.display = None if offered else "none"

    def _suit_rate(self) -> None:
        """Set the rate to the optimizer's; during a run the slider is the run's, so the next start does it."""
        self._is_to_suit = self._active is not None
        if not self._is_to_suit and self._optimizer.value in LEARNING_RATES:
            self._rate.value = LEARNING_RATES[self._optimizer.value]

    def leave_starting_to_others(self) -> None:
        """Hide the choice of a target and the start button, for widgets that bring their own."""
        for widget in (self._choice, self._buttons["Start"]):
            widget.layout.display = "none"

    def offer(self, target: Target) -> None:
        """Add a target, or replace the one of the same name."""
        with self._lock:
            self._targets[target.name] = target
            self._choice.options = list(self._targets)

    def add(self, run: DashboardRun) -> None:
        """Add a finished run, such as a `RecordedRun`, to the figure."""
        with self._lock:
            self.runs.append(run)
            self._draw()
            if self._active is None:
                self._keep()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until all runs have ended and their figure is drawn; interrupting the kernel stops the run."""
        drawer = self._drawer
        if drawer is None:
            return
        try:
            drawer.join(timeout)
        except KeyboardInterrupt:
            run, self._next = self._active, []
            if run is not None:
                run.stop()
            drawer.join(STOP_SECONDS)
            self._say("interrupted" + (": the run was stopped" if run is not None and run.state == STOPPED else ""))

    def close(self) -> None:
        """Stop the active run and remove the widgets; the figure stays in the notebook."""
        self._next = []
        for run in self.runs:
            run.stop()
        for run in self.runs:
            run.join(STOP_SECONDS)
        if self._drawer is not None:
            self._drawer.join(STOP_SECONDS)
        self._live.close(self.widget)
        self._figure = None
        if _open.get(self._name) is self:
            del _open[self._name]

    # --- the drawing thread

    def _follow(self, before: Thread | None) -> None:
        """Redraw until the run has ended, after the previous drawing thread."""
        if before is not None:
            before.join()
        kept = time.monotonic()
        while True:
            begin = time.monotonic()
            with self._lock:
                if self._active is None and self._next and self._last and self._last.state == FINISHED:
                    self.start(self._next.pop(0))
                over = self._active is None
                if over:
                    self._drawing, self._next = False, []
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
            if self._figure is None:
                return
            self._figure.update(self.runs, **{name: menu.value for name, menu in self._view.items()})
            self._legend.value = legend(self.runs)
            self._status.value = _status(self._last) if self._last else "Choose what to train on, and start."
            if self._state() != self._said_in:  # what was said of another state may no longer be true
                self._say()
            self._enable()
            lines = map(escape, ratios(self.runs, self._view["memory"].value))
            self._ratios.value = f"<p style='line-height:1.4'>{'<br>'.join(lines)}</p>"
        self._live.draw()

    def _keep(self) -> None:
        with self._lock:
            words = describe_runs(self.runs)
            self._words.value = hidden(words)
            self._live.keep(words, legend(self.runs))

    # --- the rest

    def _enable(self) -> None:
        run = self._active
        may = {
            "Start": run is None,
            "Pause": run is not None and run.state == RUNNING,
            "Continue": self._resting is not None or (run is not None and run.state == PAUSED),
            "Stop": run is not None,
            "Clear": any(not run.active for run in self.runs),
        }
        for name in sorted(may, key=may.get, reverse=True):  # the focus of one that is disabled goes to an enabled one
            self._buttons[name].disabled = not may[name]

    @property
    def learning_rate(self) -> float:
        """The value as the slider shows it, 4.0e-3 for 0.004."""
        return float(f"{self._rate.value:.1e}")

    @property
    def samples(self) -> int:
        """Of the next run."""
        return self._samples.value

    @property
    def _last(self) -> DashboardRun | None:
        """The last run that has a thread of its own."""
        return next((run for run in reversed(self.runs) if not isinstance(run, BesideRun)), None)

    @property
    def _active(self) -> DashboardRun | None:
        return next((run for run in self.runs if run.active), None)

    @property
    def _resting(self) -> DashboardRun | None:
        """The last run, if none is active and it ended by a fault or a stop after which it can continue."""
        run = self._last if self._active is None else None
        return run if run is not None and (run.fault is not None or run.can_continue) else None

    def _the_active(self, action: str) -> DashboardRun:
        run = self._active
        if run is None:
            raise BttlabError(f"there is nothing to {action}: no run is going; start one first")
        return run

    @property
    def _failure(self) -> str:
        """Why the last run failed, and how it goes on; empty if it did not fail."""
        run = self._last
        if run is None or run.state != FAILED:
            return ""
        if run.fault is None:
            return run.error
        good = getattr(run, "good", None)
        back = f"the last good parameters, those after {good:,} samples" if good else "the initial parameters"
        below = f"Set the learning rate's slider below {run.fault.learning_rate:g}: then Continue trains with {back}"
        return f"{run.error.partition(';')[0]}. {below}. Start begins anew"

    def _state(self) -> tuple[int, str]:
        return len(self.runs), self._last.state if self._last else ""

    def _say(self, message: str = "") -> None:
        self._said_in = self._state()
        self._message.value = alert(message or self._failure)


def _check_count(samples: int) -> None:
    if not isinstance(samples, Integral) or samples < 1:
        raise BttlabError(f"samples is {samples!r}: give a whole number of at least 1")


def _status(run: DashboardRun) -> str:
    state = "running, scoring the dev split" if run.is_evaluating and run.state == RUNNING else run.state
    parts = [f"<b>{escape(run.name)}</b>: {state}", f"{run.count:,} of {run.total:,} samples"]
    if run.rate:
        if run.meter.seconds:
            parts.append(f"{run.count / run.meter.seconds:,.0f} samples/s on the device (modelled)")
        parts.append(f"{run.rate:,.0f} samples/s{' here' if run.meter.seconds else ''} (measured)")
        if run.active:
            parts.append(f"{_duration((run.total - run.count) / run.rate)} left")
    if run.meter.provenance:
        parts.append(f"{run.meter.joules[1]:,.1f} J so far ({run.meter.provenance}: {escape(run.meter.how)})")
    else:
        parts.append(f"energy: none, {escape(run.meter.how)}")
    if run.scores and run.state in (FINISHED, STOPPED):
        _, last = run.scores[-1]
        parts.append(f"dev: {scores_in_words(last)} (measured)")
    text = f"<div style='line-height:1.35'>{' · '.join(parts)}</div>"
    return until_stale(text) if run.active else text


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


@atexit.register
def _close_all() -> None:
    for dashboard in list(_open.values()):
        dashboard.close()
