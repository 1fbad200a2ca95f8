"""Runs that a dashboard starts, pauses and stops.

Each run trains in its own thread, which touches no widget. The drawing thread reads numbers, and arrays that the run's
thread only extends or replaces.
"""

import secrets
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from bttlab.baseline.record import Record
from bttlab.baseline.run import BaselineSetting, Listener, run_baseline
from bttlab.data import Samples
from bttlab.data.samples import joined
from bttlab.estimate.gpu import MODEL_VERSION, Modelled
from bttlab.lab.comparison import Published
from bttlab.lab.energy_meters import EnergyMeter
from bttlab.lab.workload import Workload
from bttlab.model import ModelConfig, NumericalFault, Optimizer, Predictions, Trainer, predict
from bttlab.runs.evaluation import scores_of
from bttlab.runs.plan import Callback, EvaluationPlan
from bttlab.runs.progress import NoProgress
from bttlab.runs.record import RunRecord, now
from bttlab.runs.run import DivergedRun
from bttlab.runs.run import Run as Training
from bttlab.runs.settings import RunError, RunSettings
from bttlab.runs.start import start_run
from bttlab.runs.stop import StopRequested
from bttlab.runs.table import runs_folder
from bttlab.runs.u50 import U50Figures
from bttlab.util.errors import BttlabError
from bttlab.util.quantities import Quantity
from bttlab.util.threads import Thread

ACCOUNTINGS = {  # of memory: what compares with what
    "tensors": "data in use (tensors; bytes that a program uses on the chip)",
    "footprint": "whole footprint (GPU process; blocks of the chip)",
}
EVALUATIONS = 8  # of the dev split in a run, at most
PREDICTED_AT_ONCE = 50  # utterances
HISTORY = {"samples": 0, "time": 1, "least energy": 2, "energy": 3, "most energy": 4, "here": 5}  # columns
MARKS = ("rate", "pause", "stop", "back")
GOOD_SAMPLES = 300  # between two copies of the parameters, to go back to
JUDGED_SAMPLES = 100  # after a copy: their mean loss says whether its parameters are good
GOOD_LOSS = 1.25  # of the last good copy's mean: parameters with a higher one are not good
READY, RUNNING, PAUSED, FINISHED, STOPPED, FAILED = "ready", "running", "paused", "finished", "stopped", "failed"


class DashboardRun:
    """A training run of a dashboard: its settings and its progress.

    The learning rate may be changed at any time; a new one takes effect with the next samples if
    `follows_learning_rate`. A finished run has no workload.
    """

    follows_learning_rate = True
    is_scored = True  # on the dev split, now and then

    def __init__(
        self, name: str, total: int, learning_rate: float, meter: EnergyMeter, workload: Workload | None = None
    ):
        self._workload = workload
        self.name, self.total, self.learning_rate, self.meter = name, total, learning_rate, meter
        self.state, self.error, self.begun = READY, "", ""
        self.fault: NumericalFault | None = None  # the failure, if the run can resume from before that sample
        self.count = 0  # of samples trained on
        self.seconds = 0.0  # of training on this computer, without pauses, set-up and evaluations (measured)
        self.device_seconds = 0.0  # modelled of an emulated card or a modelled GPU, else `seconds`
        self.beside: DashboardRun | None = None  # it follows this one, and has its state
        self.scores: list[tuple[int, dict[str, float]]] = []  # count, and scores of dev as of `scores_of`
        self.history = [(0, 0.0, *([0.0 if meter.provenance else np.nan] * 3), 0.0)]  # rows of the columns `HISTORY`
        self.memory: dict[str, Quantity] = {}  # bytes that training takes, by the `ACCOUNTINGS` that are known
        self.published: Published | None = None
        self.marks: list[tuple[int, str]] = []  # count, and what the user did then: one of `MARKS`
        self.is_evaluating = False
        self.losses = np.zeros(0, np.float32)  # shape (count,)
        self._stop, self._unpaused = threading.Event(), threading.Event()
        self._changing = threading.Lock()  # of the state: its thread ends the run while another pauses it
        self._thread: Thread | None = None

    @property
    def setting(self) -> str:
        return f"learning rate {self.learning_rate:g}"

    def at(self, counts: np.ndarray, across: str) -> np.ndarray:
        """Return the positions of sample counts on an axis: one of `HISTORY`, NaN without a meter's joules."""
        known = np.array(self.history)
        return np.interp(counts, known[:, 0], known[:, HISTORY[across]])

    @property
    def time_provenance(self) -> str:
        return "modelled" if self.meter.provenance == "modelled" else "measured"

    @property
    def active(self) -> bool:
        return self.state in (RUNNING, PAUSED)

    @property
    def can_continue(self) -> bool:
        return False

    @property
    def scored_at(self) -> list[int]:
        """Samples after which the dev split is scored: all, and parts that are no smaller than the dev split."""
        times = max(1, min(EVALUATIONS, self.total // len(self._workload.dev)))
        return sorted({-(-part * self.total // times) for part in range(1, times + 1)})

    @property
    def rate(self) -> float:
        """Samples per second of training so far; 0 before the first."""
        return self.count / self.seconds if self.seconds else 0.0

    def start(self) -> None:
        """Start in a thread, or resume after a fault or, if it `can_continue`, after a stop."""
        self.error, self.fault = "", None
        self._set_state(RUNNING)
        self.begun = self.begun or now()
        self._stop.clear()
        self._unpaused.set()
        # daemon: a kernel that is shut down does not wait for the end of the training
        self._thread = Thread(target=self._run, name="bttlab-lab-run", daemon=True)
        self._thread.start()

    def pause(self) -> None:
        self._unpaused.clear()
        self.marks.append((self.count, "pause"))
        self._become(PAUSED)

    def resume(self) -> None:
        self._become(RUNNING)
        self._unpaused.set()

    def stop(self) -> None:
        self._stop.set()
        self._unpaused.set()

    def _become(self, state: str) -> None:
        with self._changing:
            if self.active:
                self._set_state(state)

    def _set_state(self, state: str) -> None:
        for run in filter(None, (self, self.beside)):
            run.state = state

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the thread; returns whether it has ended."""
        if self._thread is None:
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    # --- for subclasses, in the run's thread

    def _train(self) -> None:
        raise NotImplementedError

    def _add(self, losses: np.ndarray, seconds: float) -> None:
        self.losses = np.concatenate([self.losses, losses])  # a new array: a drawing may use the old one
        self.seconds += seconds
        self.device_seconds = self.meter.seconds or self.seconds
        joules = self.meter.joules if self.meter.provenance else [np.nan] * 3
        self.history.append((self.count + len(losses), self.device_seconds, *joules, self.seconds))
        self.count += len(losses)

    def _evaluate(self, predict: Callable[[Samples], Predictions]) -> None:
        """Score the dev split, unless the run is stopped meanwhile."""
        workload, parts = self._workload, []
        dev = workload.dev
        self.is_evaluating = True
        for first in range(0, len(dev), PREDICTED_AT_ONCE):
            if self._stop.is_set():
                return
            parts.append(predict(dev[first : first + PREDICTED_AT_ONCE]))
        self.scores.append((self.count, scores_of(joined(parts), workload.corpus, "dev", workload.config, len(dev))))
        self.is_evaluating = False

    def _run(self) -> None:
        try:
            self._train()
            state = STOPPED if self._stop.is_set() and self.count < self.total else FINISHED
        except Exception as error:  # the dashboard shows it
            self.error = str(error) if isinstance(error, BttlabError) else f"{type(error).__name__}: {error}"
            state = STOPPED if self._stop.is_set() and self.count == 0 else FAILED
        self.is_evaluating = False
        if state == STOPPED:
            self.marks.append((self.count, "stop"))
        self._become(state)


@dataclass
class _Copy:
    """Parameters and optimizer state after `count` samples, and the mean loss of the samples after them."""

    count: int
    parameters: dict[str, np.ndarray]
    state: dict[str, np.ndarray]
    loss: float = np.inf  # not yet known


class TrainerRun(DashboardRun, Callback):
    """A run like that of `bttlab train`, kept among the user's runs, on any `bttlab.model.Trainer`.

    The trainer starts from the workload's initial parameters and keeps the trained ones. `is_loaded` returns whether
    its card still has its overlay and program, `state_of` an object that another replaces when anything changes the
    parameters there. With `on_u50` the record has the modelled figures of the U50.
    """

    def __init__(
        self,
        *common: Any,
        trainer: Trainer,
        optimizer: Optimizer,
        is_loaded: Callable[[], bool] = lambda: True,
        state_of: Callable[[], object] = lambda: None,
        on_u50: bool = False,
    ):
        super().__init__(*common)
        self._trainer, self._optimizer, self._is_loaded, self._on_u50 = trainer, optimizer, is_loaded, on_u50
        self._state_of, self._own_state = state_of, None  # what `state_of` gave after the run's last samples
        self.rates: list[tuple[int, float]] = []  # samples trained on before each change of the rate, and the new rate
        self._plan = EvaluationPlan(self.scored_at, len(self._workload.dev))
        self._kept: Training | None = None
        self._good: _Copy | None = None  # None before the first sample
        self._copied: _Copy | None = None  # the last copy, not yet judged
        self._is_restoring = False

    @property
    def good(self) -> int | None:
        """Samples after which the parameters were the last good ones; None before the first sample."""
        return self._good.count if self._good else None

    def start(self) -> None:
        """As of `DashboardRun`; after a fault it continues with the last good parameters.

        Raises BttlabError if another dashboard's run has the trainer.
        """
        check_idle(self._trainer)
        self._is_restoring, self._own_state = self.fault is not None, None
        super().start()
        _last_on[self._trainer] = self

    @property
    def setting(self) -> str:
        rates = [rate for _, rate in self.rates] or [self.learning_rate]
        moved = " → ".join(["…"] * (len(rates) > 3) + [f"{rate:g}" for rate in rates[-3:]])
        rule, size = self._optimizer.name, self._optimizer.batch_size
        rule += f", batch size {size}" if size > 1 else ""
        return f"{rule}, learning rate {moved}, seed {self._workload.seed}"

    @property
    def can_continue(self) -> bool:
        """True if `start` continues it after a stop, with the bits of an unbroken run."""
        return self.state == STOPPED and self._kept is not None

    def _train(self) -> None:
        self._kept = self._kept or self._begin()
        try:
            self._kept.train(self._trainer, self.name, NoProgress(), plan=self._plan, callback=self)
        except DivergedRun as error:
            self.fault = error.fault.at(self.count, self.losses)
            raise self.fault from None

    def _begin(self) -> Training:
        corpus, model = self._workload.corpus, self._workload.config
        settings = RunSettings(
            config=model if isinstance(model, ModelConfig) else model.config,
            data=str(corpus.folder),
            device="auto",
            optimizer=self._optimizer,
            learning_rate=self.learning_rate,
            seed=self._workload.seed,
            epochs=-(-self.total // len(corpus.train)),
        )
        folder = runs_folder() / f"{self._group}-{secrets.token_hex(4)}"
        samples = {"train": self._workload.train, "dev": self._workload.dev}
        return start_run(folder, settings, corpus, samples, model)

    @property
    def _group(self) -> str:
        """Name of the dashboard's runs with this corpus and model in the index."""
        return f"dashboard-{self._workload.corpus.name}-{self._workload.config.slug}"

    def on_record(self, record: RunRecord) -> None:
        record.name, record.begun = self._group, self.begun
        if self._on_u50 and record.status != RUNNING:  # it takes a moment, which nobody waits for at the beginning
            U50Figures(self._workload.config, self._kept.lengths, self._optimizer).on_record(record)

    # --- as the run's callback

    def before(self, count: int) -> None:
        self._unpaused.wait()
        if self._stop.is_set():
            raise StopRequested
        if not self._is_loaded():
            raise RunError(
                "the run's overlay and program are no longer on the card: others were loaded; load them again and start"
            )
        if self._own_state is not self._state_of() and self._own_state is not None:
            raise RunError(
                "the parameters on the card are no longer the run's: others were loaded or trained; start again"
            )
        if self._good is None:  # the initial parameters, whatever the rate will do to them
            self._good = self._copied = self._copy()
        if self._is_restoring:  # here the run has loaded its own, those before the fault
            self._is_restoring, self._copied = False, None
            self._trainer.load_parameters(self._good.parameters, self._good.state)
            self.marks.append((self.count, "back"))
        self._own_state = self._state_of()

    def next_rate(self, learning_rate: float) -> float:
        if not self.rates or self.rates[-1][1] != self.learning_rate:
            if self.rates:
                self.marks.append((self.count, "rate"))
            self.rates.append((self.count, self.learning_rate))
        return self.rates[-1][1]

    def trained(self, samples: Samples, losses: np.ndarray, seconds: float) -> None:
        self._own_state = self._state_of()
        self.meter.advance(samples, seconds)
        self._add(losses, seconds)
        if self.beside is not None:
            self.beside.follow(samples, losses, seconds)
        self._judge_or_copy()

    def _judge_or_copy(self) -> None:
        """Judge the last copy of the parameters by the losses after it, or make the next one; two copies at most.

        A loss is of the parameters before its update, so the losses before a copy say nothing of its last updates.
        """
        copied, good = self._copied, self._good
        if copied is None:
            if self.count >= good.count + GOOD_SAMPLES:
                self._copied = self._copy()
        elif self.count >= copied.count + JUDGED_SAMPLES:
            copied.loss = float(self.losses[copied.count : copied.count + JUDGED_SAMPLES].mean())
            if copied.loss <= GOOD_LOSS * good.loss:
                self._good = copied
            self._copied = None

    def _copy(self) -> "_Copy":
        return _Copy(self.count, self._trainer.store_parameters(), self._trainer.store_optimizer_state())

    def evaluation_begins(self, count: int) -> None:
        """Let the status say why no samples are trained on."""
        self.is_evaluating = True

    def evaluated(self, count: int, scores: dict[str, Any]) -> None:
        self.is_evaluating = False
        self.scores.append((count, scores))


_last_on: "weakref.WeakKeyDictionary[Trainer, TrainerRun]" = weakref.WeakKeyDictionary()


def check_idle(trainer: Trainer) -> None:
    """Raise BttlabError if a run that has not ended has a trainer: another dashboard's."""
    run = _last_on.get(trainer)
    if run is not None and run.active:
        raise BttlabError(
            f"{run.name} is {run.state} in another dashboard: stop it there, or let it end, before you start here"
        )


class BaselineRun(DashboardRun):
    """PyTorch training as `bttlab baseline` measures it: the samples, order and initial parameters of the U50."""

    follows_learning_rate = False

    def __init__(self, *common: Any, format: str, device: str, mode: str):
        super().__init__(*common)
        self._format, self._device, self._mode = format, device, mode
        self._order = self._workload.order(self.total)

    @property
    def setting(self) -> str:
        return f"sgd, learning rate {self.learning_rate:g}, seed {self._workload.seed}"

    def _train(self) -> None:
        work = self._workload
        if self._device == "cpu":
            torch.set_num_threads(1)  # as bttlab baseline: at batch 1 more threads mostly wait for each other
        setting = BaselineSetting(
            self._format,
            self._device,
            config=work.config,
            data=work.corpus.folder,
            steps=self.total,
            seed=work.seed,
            learning_rate=self.learning_rate,
            modes=[self._mode],
        )
        listener = Listener(
            on_step=self._on_step,
            stop=self._stop,
            evaluate=lambda _, model: self._evaluate(partial(predict, model, config=work.config)),
            evaluate_at=self.scored_at,
        )
        record = run_baseline(setting, listener)
        self.memory = _memory_of(record)

    def _on_step(self, step: int, loss: float, seconds: float) -> None:
        self.meter.advance(self._workload.train[self._order[step]], seconds)
        self._add(np.array([loss], np.float32), seconds)
        self._unpaused.wait()


class BesideRun(DashboardRun):
    """A modelled GPU that makes the steps of another run: its losses are that run's, nothing is trained for it.

    `longest` is its step on the workload's longest sample, which decides its memory.
    """

    def __init__(self, run: DashboardRun, name: str, meter: EnergyMeter, longest: Modelled):
        super().__init__(name, run.total, run.learning_rate, meter)
        self._of, run.beside = run, self
        low, held, high = longest.process_bytes
        how = f"the GPU model {MODEL_VERSION}: "
        self.memory = {
            "tensors": Quantity(longest.tensor_bytes, "bytes", "modelled", how + "tensors"),
            "footprint": Quantity(held, "bytes", "modelled", how + "context, workspace and tensors", low, high),
        }

    @property
    def setting(self) -> str:
        return f"losses of {self._of.name}"

    def follow(self, samples: Samples, losses: np.ndarray, seconds: float) -> None:
        self.meter.advance(samples, seconds)
        self._add(losses, seconds)


class RecordedRun(DashboardRun):
    """A recorded baseline, perhaps of another machine.

    Parameters
    ----------
    record : Record
        Of `bttlab.baseline`.
    """

    is_scored = False

    def __init__(self, record: Record):
        done, energy = record.measurement, record.measurement.energy.per_step
        meter = EnergyMeter(energy.provenance, energy.how)  # of none, the reason
        losses = np.repeat(np.array(done.losses, np.float32), record.batch)  # of a batch, their mean
        super().__init__(
            f"recorded on {record.corpus.name}: {record.label_of()}", len(losses), record.learning_rate, meter
        )
        if energy.value is not None:
            meter.joules = (energy.value * len(done.losses),) * 3
        self._add(losses, sum(done.step_seconds))
        self.memory = _memory_of(record)
        self.state = FINISHED


def _memory_of(record: Record) -> dict[str, Quantity]:
    known = {"tensors": record.memory.peak, "footprint": record.measurement.reserved}
    return {name: bytes_ for name, bytes_ in known.items() if bytes_.value is not None}
