"""Run a sweep: a trial is one task of an executor, and an ordinary run in a folder named by its configuration's digest.

Where workers share the sweep's folder, a trial whose worker died goes on from its last checkpoint; elsewhere it begins
again. A finished trial is not run again.
"""

import secrets
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Future, wait
from dataclasses import dataclass, field, replace
from pathlib import Path

from bttlab.runs.lock import run_lock
from bttlab.runs.record import COMPLETE, FAILED, RUN_FILE, STOPPED, RunRecord, read_run
from bttlab.runs.settings import RunError
from bttlab.runs.sweep.executor import Cluster, ClusterError, LocalPool, no_interrupt
from bttlab.runs.sweep.search import Search
from bttlab.runs.sweep.spec import SweepSpec
from bttlab.runs.sweep.task import Task, TrialResult, run_trial
from bttlab.runs.sweep.trials import CARD, Trial, TrialMaker
from bttlab.util.errors import BttlabError
from bttlab.util.files import write_file

LOOK_SECONDS = 0.5
STOP_SECONDS = 15.0  # that trials may take to save their state when the sweep is stopped
NO_WORKER_SECONDS = 600.0  # without a worker, after which a sweep ends
MOST_DEATHS = 3  # of workers, one after the other without a finished trial


class SweepError(BttlabError):
    """Raised if a sweep cannot run or continue."""


@dataclass
class Progress:
    """Progress of a sweep."""

    total: int  # trials
    records: dict[str, RunRecord] = field(default_factory=dict)  # trials that have ended or failed, by id
    running: set[str] = field(default_factory=set)  # trials that workers have, by id
    best: RunRecord | None = None
    workers: int = 0
    seconds_left: float | None = None  # estimate; None until a trial has ended
    note: str = ""  # other activity, such as waiting for workers

    @property
    def failed(self) -> int:
        return sum(record.status == FAILED for record in self.records.values())

    def in_words(self, objective: str) -> str:
        """Return the progress as a phrase; `objective` is the figure to compare trials by."""
        parts = [f"{len(self.records)} of {self.total} trials done"]
        if self.failed:
            parts[0] += f", {self.failed} of them failed"
        if self.note:
            parts.append(self.note)
        if self.best is not None:
            parts.append(f"best so far: {self.best.name}, {result_of(self.best, objective)}")
        if self.running:
            parts.append(f"{len(self.running)} running on {self.workers} worker{'s' * (self.workers != 1)}")
            if self.seconds_left is not None:
                minutes, seconds = divmod(round(self.seconds_left), 60)
                parts.append(f"about {minutes} min {seconds} s left")
        return "; ".join(parts)


def result_of(record: RunRecord, objective: str) -> str:
    """Return a trial's objective with unit and provenance, or why there is none."""
    if record.status != COMPLETE:
        return f"{record.status}: {record.error}"
    figure = record.figures.get(objective)
    if not figure:
        return ""
    unit = "" if figure["unit"] == "1" else f" {figure['unit']}"
    return f"{objective} {figure['value']:.4g}{unit} ({figure['provenance']})"


class Sweep:
    """A sweep and its folder, with a run's folder for each trial. Trials are checked before anything starts.

    Parameters
    ----------
    folder : path
        Finished trials in it stay; others are continued.

    Raises
    ------
    SpecError
        If the specification does not hold.
    """

    def __init__(self, spec: SweepSpec, folder: Path):
        self.spec, self.folder = spec, Path(folder).absolute()
        self._maker = TrialMaker(spec)
        self._search = Search(spec, self._maker)
        self.progress = Progress(self._search.total)
        self._waiting: list[Trial] = []  # to be handed out again
        self._stopped = False

    @property
    def resources(self) -> dict[str, float]:
        """What a trial takes of its worker."""
        varied = self.spec.vary.get("device")
        devices = [self.spec.fixed.get("device"), *(varied if isinstance(varied, list) else ())]
        return ({CARD: 1} if CARD in devices else {}) | dict(self.spec.resources)

    def stop(self) -> None:
        """End `run` soon, from another thread."""
        self._stopped = True

    def run(
        self, executor: LocalPool | Cluster, on_change: Callable[[Progress], None] = lambda progress: None
    ) -> Progress:
        """Run the unfinished trials.

        Parameters
        ----------
        executor : LocalPool or Cluster
            From `open_executor`.
        on_change : callable
            Gets the progress whenever there is some.

        Raises
        ------
        ClusterError
            If the scheduler or all workers have gone.
        SweepError
            If the folder cannot be used, or workers die again and again.
        """
        try:
            self.folder.mkdir(0o700, parents=True, exist_ok=True)
            with run_lock(self.folder):
                mark = self.folder / f".sweep-{secrets.token_hex(8)}"
                mark.touch()
                try:
                    return _Dispatcher(self, executor, on_change, mark.name).run()
                finally:
                    mark.unlink(missing_ok=True)
        except RunError as error:
            raise SweepError(str(error)) from None
        except OSError as error:
            raise SweepError(
                f"{error.filename or self.folder} cannot be written ({error.strerror}): finished trials stay; make "
                "room, or the folder writable, and run the same command again"
            ) from None

    # --- trials

    def _open(self) -> None:
        """Open the study, and count the trials that have ended."""
        self._waiting = [trial for trial in self._search.open(self.folder) if not self._is_done(trial)]

    def _next(self) -> Trial | None:
        """Return the next unfinished trial, or None; count the finished ones."""
        if self._waiting:
            return self._waiting.pop(0)
        while (trial := self._search.next()) is not None:
            if not self._is_done(trial):
                return trial
        return None

    def _is_done(self, trial: Trial) -> bool:
        """Return whether a trial is complete in the folder; count it then."""
        folder = self.folder / trial.id
        if not (folder / RUN_FILE).exists() or (record := read_run(folder)).status != COMPLETE:
            return False
        self._end(trial, record)
        return True

    def _end(self, trial: Trial, record: RunRecord) -> None:
        progress, objective = self.progress, self.spec.objective or ""
        value = record.value(objective) if record.status == COMPLETE else None
        self._search.tell(trial, value)
        progress.records[record.id] = record
        progress.running.discard(record.id)
        if value is not None:
            best = None if progress.best is None else progress.best.value(objective)
            if best is None or (value > best if self.spec.maximize else value < best):
                progress.best = record

    def _task(self, trial: Trial, mark: str) -> Task:
        module = trial.module
        source, beside = (module.source, dict(module.files)) if module else (b"", {})
        return Task(replace(trial, module=None), self.spec.name, self.folder / trial.id, mark, source, beside)

    def _keep(self, trial: Trial, result: TrialResult) -> RunRecord:
        """Write what a worker returned that does not share the folder."""
        folder = self.folder / trial.id
        if not (folder / RUN_FILE).exists() or result.files:
            folder.mkdir(0o700, exist_ok=True)
            for name, data in result.files.items():
                (folder / name).parent.mkdir(exist_ok=True)
                write_file(folder / name, data)
            result.record.write(folder)
        return result.record

    def _fail(self, trial: Trial, error: BaseException) -> RunRecord:
        """Record a trial that its worker could not run; a later run of the sweep tries it again."""
        folder = self.folder / trial.id
        try:
            record = read_run(folder)
        except BttlabError:
            kind = "estimate" if trial.settings is None else "training"
            record = RunRecord(kind, trial.name, trial.configuration, "", trial.id, sweep=self.spec.name)
        record.end(FAILED, str(error) if isinstance(error, BttlabError) else f"{type(error).__name__}: {error}")
        folder.mkdir(0o700, exist_ok=True)
        record.write(folder)
        return record


class _Dispatcher:
    """Hands the trials of a sweep to an executor, and takes the results."""

    def __init__(self, sweep: Sweep, executor: LocalPool | Cluster, on_change: Callable[[Progress], None], mark: str):
        self._sweep, self._executor, self._on_change, self._mark = sweep, executor, on_change, mark
        self._running: dict[Future, Trial] = {}
        self._deaths, self._begin = 0, time.monotonic()
        self._had_worker = self._begin

    def run(self) -> Progress:
        sweep = self._sweep
        sweep._open()
        before = len(sweep.progress.records)
        try:
            while not sweep._stopped:
                self._hand_out()
                if not self._running:
                    break
                done, _ = wait(self._running, timeout=LOOK_SECONDS, return_when=FIRST_COMPLETED)
                self._look()
                broken = False
                for future in done:
                    broken |= self._take(self._running.pop(future), future)
                if broken:
                    self._restart()
                if done:
                    gained = len(sweep.progress.records) - before
                    left = sweep.progress.total - len(sweep.progress.records)
                    elapsed = time.monotonic() - self._begin
                    sweep.progress.seconds_left = elapsed * left / gained if gained else None
                    self._say("")
        except KeyboardInterrupt:
            with no_interrupt():
                self._stop()
            raise
        if sweep._stopped:
            self._stop()
        self._say("stopped" if sweep._stopped else "")
        return sweep.progress

    def _hand_out(self) -> None:
        sweep, count = self._sweep, len(self._running)
        while len(self._running) < max(1, self._executor.workers):
            if (trial := sweep._next()) is None:
                break
            try:
                self._running[self._executor.submit(run_trial, sweep._task(trial, self._mark))] = trial
            except BrokenExecutor:  # a process died since
                sweep._waiting.insert(0, trial)
                self._restart()
                continue
            sweep.progress.running.add(trial.id)
        if len(self._running) != count:
            self._say("")

    def _look(self) -> None:
        """Look at the executor: whether it is there, and has workers."""
        self._executor.check()
        now = time.monotonic()
        if self._executor.workers:
            self._had_worker = now
        elif now > self._had_worker + NO_WORKER_SECONDS:
            raise ClusterError(
                f"no worker for {NO_WORKER_SECONDS / 60:.0f} minutes; finished trials stay: start some, and run the "
                "same command again to go on"
            )
        if self._executor.workers != self._sweep.progress.workers:
            self._say("" if self._executor.workers else "no workers; waiting for one")

    def _take(self, trial: Trial, future: Future) -> bool:
        """Take the result of a trial; returns whether its worker died and it is to be handed out again."""
        sweep = self._sweep
        try:
            record = sweep._keep(trial, future.result())
        except BrokenExecutor:
            sweep._waiting.append(trial)
            return True
        except CancelledError:
            self._executor.check()
            raise ClusterError(
                "the cluster has cancelled a trial; finished trials stay: run the same command again to go on"
            ) from None
        except Exception as error:  # whatever a worker raised
            record = sweep._fail(trial, error)
        sweep.progress.running.discard(trial.id)
        if record.status == STOPPED:  # by a signal to its worker
            sweep._waiting.append(trial)
            return False
        self._deaths = 0
        sweep._end(trial, record)
        return False

    def _restart(self) -> None:
        """Hand out again all that a broken executor had, from their last checkpoints."""
        self._deaths += 1
        if self._deaths > MOST_DEATHS:
            raise SweepError(
                f"workers died {self._deaths} times, and no trial has ended since; give fewer with --workers, or see "
                "whether the memory suffices"
            )
        self._sweep._waiting += self._running.values()
        self._running.clear()
        self._sweep.progress.running.clear()
        self._executor.restart()

    def _stop(self) -> None:
        self._executor.stop()
        wait(self._running, timeout=STOP_SECONDS)
        self._sweep.progress.running.clear()

    def _say(self, note: str) -> None:
        progress = self._sweep.progress
        progress.workers, progress.note = self._executor.workers, note
        self._on_change(progress)
