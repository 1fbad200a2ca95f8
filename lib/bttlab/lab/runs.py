"""Runs that a dashboard starts, pauses and stops; each trains in a thread of its own and touches no widget.

Whoever draws reads what the thread has written: numbers, and arrays that it only extends or replaces.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from bttlab.baseline.modelled import MODEL_VERSION, Modelled
from bttlab.baseline.record import Record
from bttlab.baseline.run import run_baseline
from bttlab.data import Samples
from bttlab.data.metrics import Scores, score
from bttlab.errors import BttlabError
from bttlab.experiments.keep import keep_baseline
from bttlab.experiments.record import now
from bttlab.lab.kept_runs import Stretch, keep_dashboard_run
from bttlab.lab.losses import MOST_LOSSES, MOST_POINTS, Losses
from bttlab.lab.meters import EnergyMeter, NoMeter, Recorded
from bttlab.lab.workload import Workload
from bttlab.model import NumericalFault, Optimizer, Predictions, Trainer, initial_parameters, predict
from bttlab.threads import Thread

CHUNK_SECONDS = 0.3  # training between two looks at pause and stop
LARGEST_CHUNK = 1024  # samples
EVALUATIONS = 8  # of the dev split in a run, the last one at its end; more in one of millions of samples
PREDICTED_AT_ONCE = 50  # utterances

READY, RUNNING, PAUSED, FINISHED, STOPPED, FAILED = "ready", "running", "paused", "finished", "stopped", "failed"


class RunError(BttlabError):
    """A run that cannot go on."""


@dataclass(frozen=True)
class Memory:
    """The bytes that training takes, and where the number comes from."""

    bytes: float
    provenance: str
    how: str


class Run:
    """A training run: what it is asked, and what it has done so far.

    Parameters
    ----------
    name : str
        What trains where; for legends.
    total : int
        Samples.
    learning_rate : float
        May be changed at any time; takes effect with the next samples where the run can follow.
    most_losses : int
        That are kept one by one.

    Attributes
    ----------
    state : {"ready", "running", "paused", "finished", "stopped", "failed"}
    error : str
        Why it failed, in a sentence.
    fault : NumericalFault or None
        What it failed by, if it can go on from before that sample.
    begun : str
        When it first started: ISO 8601, UTC.
    seconds : float
        Training alone: without pauses, set-up and the dev split.
    scores : list of (int, Scores)
        Samples trained on, and the scores of the dev split then.
    clock : list of (int, float)
        Samples trained on, and seconds so far; every second point goes when there are `MOST_POINTS`.
    energy : list of (int, float, float, float)
        Samples trained on, and joules so far: the figure and its band. As long as `clock`, or empty without a meter.
    memory : Memory or None
    """

    follows_learning_rate = True
    is_scored = True  # on the dev split, now and then
    time_provenance = "measured"  # of `seconds`

    def __init__(self, name: str, total: int, learning_rate: float, meter: EnergyMeter, most_losses: int = MOST_LOSSES):
        self.name, self.total, self.learning_rate, self.meter = name, total, learning_rate, meter
        self.state, self.error, self.begun = READY, "", ""
        self.fault: NumericalFault | None = None
        self.seconds = 0.0
        self.scores: list[tuple[int, Scores]] = []
        self.clock: list[tuple[int, float]] = [(0, 0.0)]
        self.energy: list[tuple[int, float, float, float]] = []
        self.memory: Memory | None = None
        self._losses = Losses(total, most_losses)
        self._stop, self._unpaused = threading.Event(), threading.Event()
        self._changing = threading.Lock()  # of the state: its thread ends the run while another pauses it
        self._thread: Thread | None = None

    @property
    def count(self) -> int:
        """Samples trained on."""
        return self._losses.count

    @property
    def losses(self) -> np.ndarray:
        """Losses so far, float32 of shape (count,); of a run of millions of samples the last ones."""
        return self._losses.last

    @property
    def curve(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The losses of all samples so far, thinned: as `Losses.curve`."""
        return self._losses.curve

    @property
    def setting(self) -> str:
        """What it is trained with, in words."""
        return f"learning rate {self.learning_rate:g}"

    def at(self, counts: np.ndarray, across: str) -> np.ndarray:
        """Return where samples lie on another axis.

        Parameters
        ----------
        counts : ndarray
            Samples trained on.
        across : {"samples", "time", "energy"}
            "time" in seconds of training, "energy" in joules; without a meter NaN, which is not drawn.
        """
        if across == "samples":
            return counts
        known = np.array(self.clock if across == "time" else self.energy or [(0, np.nan)])
        return np.interp(counts, known[:, 0], known[:, 1])

    @property
    def active(self) -> bool:
        """Whether it has begun and not ended."""
        return self.state in (RUNNING, PAUSED)

    @property
    def rate(self) -> float:
        """Samples per second of training so far; 0 before the first."""
        return self.count / self.seconds if self.seconds else 0.0

    def start(self) -> None:
        """Begin, or go on after a fault, in a thread."""
        self.state, self.error, self.fault = RUNNING, "", None
        self.begun = self.begun or now()
        self._stop.clear()
        self._unpaused.set()
        # daemon: a kernel that is shut down does not wait for the end of the training
        self._thread = Thread(target=self._run, name="bttlab-lab-run", daemon=True)
        self._thread.start()

    def pause(self) -> None:
        """Hold before the next samples."""
        self._unpaused.clear()
        self._become(PAUSED)

    def resume(self) -> None:
        """Go on after a pause."""
        self._become(RUNNING)
        self._unpaused.set()

    def stop(self) -> None:
        """End before the next samples."""
        self._stop.set()
        self._unpaused.set()

    def _become(self, state: str) -> None:
        with self._changing:
            if self.active:
                self.state = state

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the thread; returns whether it has ended."""
        if self._thread is None:
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    # --- for subclasses, in the run's thread

    def _train(self) -> None:
        raise NotImplementedError

    def _may_go_on(self) -> bool:
        """Wait while paused; whether there is a next sample to train on."""
        self._unpaused.wait()
        return not self._stop.is_set() and self.count < self.total

    def _add(self, losses: np.ndarray, seconds: float) -> None:
        self._losses.add(losses)
        self.seconds += seconds
        if len(self.clock) == MOST_POINTS:
            self.clock, self.energy = (
                self.clock[::2],
                self.energy[::2],
            )  # new lists: whoever draws may hold the old ones
        self.clock.append((self.count, self.seconds))
        if self.meter.provenance:
            joules = self.meter.joules
            self.energy.append((self.count, joules, *(self.meter.bounds or (joules, joules))))

    def _evaluate(self, workload: Workload, predict: Callable[[Samples], Predictions]) -> None:
        """Score the dev split, unless the run is stopped meanwhile."""
        dev, parts = workload.dev, []
        for first in range(0, len(dev), PREDICTED_AT_ONCE):
            if self._stop.is_set():
                return
            parts.append(predict(dev[first : first + PREDICTED_AT_ONCE]))
        columns = ([getattr(part, name) for part in parts] for name in ("losses", "intents", "slots"))
        predictions = Predictions(*map(np.concatenate, columns))
        self.scores.append((self.count, score(workload.corpus, workload.dev_split, predictions)))

    def _run(self) -> None:
        try:
            self._train()
            state = STOPPED if self._stop.is_set() and self.count < self.total else FINISHED
        except Exception as error:  # whatever it is, it has to end up where the user looks
            self.error = str(error) if isinstance(error, BttlabError) else f"{type(error).__name__}: {error}"
            state = STOPPED if self._stop.is_set() and self.count == 0 else FAILED
        try:
            self._keep(state)
        except Exception as error:  # the run is over and well: it only cannot be found again
            self.error = self.error or f"the run is not kept: {error}"
        self._become(state)

    def _keep(self, state: str) -> None:
        """Leave a run that can be found again."""


class TrainerRun(Run):
    """A run on anything with the methods of `bttlab.model.Trainer`.

    Parameters
    ----------
    name, total, learning_rate, meter
        As for `Run`.
    workload : Workload
    trainer : Trainer
        Starts from the workload's initial parameters, and keeps the trained ones.
    optimizer : Optimizer
    is_there : callable, optional
        Whether the trainer's card still has its overlay and program.
    keeps : bool
        Whether it leaves a run that can be found again.

    Attributes
    ----------
    stretches : list of Stretch
        Its losses from one evaluation to the next.
    rates : list of (int, float)
        Each learning rate that it trained with, and the samples before the first with it.
    """

    def __init__(
        self,
        name: str,
        total: int,
        learning_rate: float,
        meter: EnergyMeter,
        workload: Workload,
        trainer: Trainer,
        optimizer: Optimizer,
        is_there: Callable[[], bool] = lambda: True,
        keeps: bool = False,
    ):
        most_losses = max(MOST_LOSSES, 2 * len(workload.train))  # half of them stay: an epoch, for its checkpoint
        super().__init__(name, total, learning_rate, meter, most_losses)
        self._workload, self._trainer, self._optimizer, self._is_there = workload, trainer, optimizer, is_there
        self._keeps = keeps
        self.stretches: list[Stretch] = []
        self.rates: list[tuple[int, float]] = []
        self._evaluations = max(EVALUATIONS, -(-total // (most_losses // 4)))
        self._reached: tuple[dict[str, np.ndarray], dict[str, np.ndarray]] | None = None  # at a fault

    @property
    def setting(self) -> str:
        """The optimizer, each learning rate, and the seed."""
        rates = [rate for _, rate in self.rates] or [self.learning_rate]
        moved = " → ".join(["…"] * (len(rates) > 3) + [f"{rate:g}" for rate in rates[-3:]])
        return f"{self._optimizer.name}, learning rate {moved}, seed {self._workload.seed}"

    def _train(self) -> None:
        start = self._reached or (initial_parameters(self._workload.config, self._workload.seed),)
        self._trainer.load_parameters(*start)  # at a fault's, too: another run may have trained meanwhile
        size, evaluated = 1, self.count * self._evaluations // self.total
        while self._may_go_on():
            if not self._is_there():
                raise RunError(
                    "the run's overlay and program are no longer on the card: others were loaded; load them again and "
                    "start"
                )
            part = self._workload.train[self._workload.part(self.count, min(size, self.total - self.count))]
            rate, begin, fault = self.learning_rate, time.perf_counter(), None
            if not self.rates or self.rates[-1][1] != rate:
                self.rates.append((self.count, rate))
            try:
                losses = self._trainer.train(part, self._optimizer, rate)
            except NumericalFault as error:
                fault, losses = error, error.losses
            seconds = time.perf_counter() - begin
            self.meter.advance(part[: len(losses)], seconds)
            self._add(losses, seconds)
            if fault is not None:
                self._reached = self._trainer.store_parameters(), self._trainer.store_optimizer_state()
                self.fault = fault.at(self.count, self.losses)
                raise self.fault from None
            size = max(1, min(LARGEST_CHUNK, 4 * size, int(len(part) / seconds * CHUNK_SECONDS)))
            if self.count * self._evaluations // self.total > evaluated:
                evaluated = self.count * self._evaluations // self.total
                self._end_stretch()
                self._evaluate(self._workload, self._trainer.predict)

    def _end_stretch(self) -> None:
        begin = self.stretches[-1].end if self.stretches else 0
        if self.count > begin:
            self.stretches.append(Stretch.of(self.count, self.losses[begin - self.count :]))

    def _keep(self, state: str) -> None:
        self._end_stretch()
        if self._keeps and self.count and self._is_there():
            keep_dashboard_run(self, state, self._workload, self._trainer, self._optimizer)


class BaselineRun(Run):
    """PyTorch training as `bttlab baseline` measures it: the samples, order and initial parameters of the U50.

    Parameters
    ----------
    name, total, learning_rate, meter
        As for `Run`.
    workload : Workload
    format, device : str
        As for `bttlab.baseline.run_baseline`.
    mode : str
        How a step is run: one of `bttlab.baseline.modes_of`.
    """

    follows_learning_rate = False

    def __init__(
        self,
        name: str,
        total: int,
        learning_rate: float,
        meter: EnergyMeter,
        workload: Workload,
        format: str,
        device: str,
        mode: str,
    ):
        super().__init__(name, total, learning_rate, meter)
        self._workload, self._format, self._device, self._mode = workload, format, device, mode
        self._order = workload.order(total)

    @property
    def setting(self) -> str:
        """The optimizer, the learning rate and the seed."""
        return f"sgd, learning rate {self.learning_rate:g}, seed {self._workload.seed}"

    def _train(self) -> None:
        if self._device == "cpu":
            torch.set_num_threads(1)  # as bttlab baseline: at batch 1 more threads mostly wait for each other
        record = run_baseline(
            self._format,
            self._device,
            config=self._workload.config,
            data=self._workload.corpus.folder,
            steps=self.total,
            seed=self._workload.seed,
            learning_rate=self.learning_rate,
            modes=[self._mode],
            on_step=self._on_step,
            stop=self._stop,
            evaluate=lambda _, model: self._evaluate(self._workload, partial(predict, model)),
            evaluate_at=[-(-part * self.total // EVALUATIONS) for part in range(1, EVALUATIONS + 1)],
        )
        self.memory = _memory_of(record)
        keep_baseline(record, self.begun)

    def _on_step(self, step: int, loss: float, seconds: float) -> None:
        self.meter.advance(self._workload.train[self._order[step]], seconds)
        self._add(np.array([loss], np.float32), seconds)
        self._unpaused.wait()


class ModelledRun(BaselineRun):
    """What a GPU that is not here would show.

    The losses and scores are those of the same training on the CPU; the GPU's time, energy and memory are modelled.

    Parameters
    ----------
    name, total, learning_rate, workload, format
        As for `BaselineRun`.
    model : callable
        Takes one sample, returns the `bttlab.baseline.modelled.Modelled` step on it.
    """

    time_provenance = "modelled"

    def __init__(
        self,
        name: str,
        total: int,
        learning_rate: float,
        workload: Workload,
        format: str,
        model: Callable[[Samples], Modelled],
    ):
        meter = Recorded("modelled", f"the GPU model {MODEL_VERSION}, the middle of its band; the whole board")
        super().__init__(name, total, learning_rate, meter, workload, format, "cpu", "eager")
        self._model = model

    def _train(self) -> None:
        super()._train()
        longest = self._workload.train.lengths[self._order].argmax()
        held = self._model(self._workload.train[self._order[longest : longest + 1]]).process_bytes[1]
        self.memory = Memory(held, "modelled", f"the GPU model {MODEL_VERSION}: context, workspace and tensors")

    def _on_step(self, step: int, loss: float, seconds: float) -> None:
        found = self._model(self._workload.train[self._order[step : step + 1]])
        self.meter.add(*found.joules)
        super()._on_step(step, loss, found.seconds[1])


class RecordedRun(Run):
    """A baseline that was run before, perhaps on another machine, as its record tells it.

    Parameters
    ----------
    record : bttlab.baseline.record.Record
    """

    is_scored = False

    def __init__(self, record: Record):
        done, energy = record.measurement, record.measurement.energy.per_step
        meter = NoMeter(energy.how) if energy.value is None else Recorded(energy.provenance, energy.how)
        super().__init__(f"recorded: {record.label_of()}", len(done.losses), record.learning_rate, meter)
        if energy.value is not None:
            meter.add(*[energy.value * self.total] * 3)
        self._add(np.array(done.losses, np.float32), sum(done.step_seconds))
        if self.energy:
            self.energy.insert(0, (0, 0.0, 0.0, 0.0))
        self.memory = _memory_of(record)
        self.state = FINISHED


def _memory_of(record: Record) -> Memory | None:
    peak = record.memory.peak
    return None if peak.value is None else Memory(peak.value, peak.provenance, peak.how)
