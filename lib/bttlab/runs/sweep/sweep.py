"""Run a sweep: a trial is one task of an executor, and an ordinary run in a folder named by its configuration's digest.

A trial whose worker died goes on from its last checkpoint, if that worker saw the folder. A finished trial is not run
again.
"""

import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Future, wait
from dataclasses import dataclass, field
from pathlib import Path

from bttlab.runs.folder import run_lock
from bttlab.runs.module import seal_module, write_module
from bttlab.runs.record import COMPLETE, FAILED, PRUNED, RUN_FILE, STOPPED, RunRecord, read_run
from bttlab.runs.settings import RunError
from bttlab.runs.sweep.executor import Cluster, LocalPool, NoInterrupt
from bttlab.runs.sweep.search import Search
from bttlab.runs.sweep.spec import SweepSpec
from bttlab.runs.sweep.task import ClusterError, Task, identity, inodes, run_trial
from bttlab.runs.sweep.trials import Trial, TrialMaker
from bttlab.util.errors import BttlabError
from bttlab.util.files import write_file

LOOK_SECONDS = 0.5
STOP_SECONDS = 15.0  # that trials may take to save their state when the sweep is stopped
NO_WORKER_SECONDS = 600.0  # without a worker, after which a sweep ends
MOST_DEATHS = 3  # of workers, one after the other without a finished trial


@dataclass
class Progress:
    """State of a sweep that runs.

    Attributes
    ----------
    spec : SweepSpec
        Of the sweep.
    total : int
        Number of trials.
    records : dict of str to RunRecord
        Trials that have ended or failed, by id.
    running : set of str
        Ids of trials that workers have.
    workers : int
        Number of processes.
    seconds_left : float or None
        Estimate; None until a trial has ended.
    note : str
        Other activity, such as waiting for workers.
    """

    spec: SweepSpec
    total: int
    records: dict[str, RunRecord] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    workers: int = 0
    seconds_left: float | None = None
    note: str = ""

    @property
    def failed(self) -> int:
        return sum(record.status == FAILED for record in self.records.values())

    @property
    def pruned(self) -> int:
        return sum(record.status == PRUNED for record in self.records.values())

    @property
    def best(self) -> RunRecord | None:
        """The first of the trials with the best objective."""
        sign, objective = 1 if self.spec.maximize else -1, self.spec.objective or ""
        known = (record for record in self.records.values() if record.status == COMPLETE)
        known = [record for record in known if record.value(objective) is not None]
        return max(known, key=lambda record: sign * record.value(objective), default=None)

    def in_words(self) -> str:
        parts = [f"{len(self.records)} of {self.total} trials done"]
        if self.failed:
            parts[0] += f", {self.failed} of them failed"
        if self.pruned:
            parts[0] += f", {self.pruned} of them ended early"
        if self.note:
            parts.append(self.note)
        if (best := self.best) is not None:
            parts.append(f"best so far: {best.name}, {result_of(best, self.spec.objective or '')}")
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

    Finished trials in the folder stay; others are continued.

    Parameters
    ----------
    spec : SweepSpec
        What it varies.
    folder : path
        Of the sweep.

    Raises
    ------
    SpecError
        If the configuration of a trial breaks a rule.
    """

    def __init__(self, spec: SweepSpec, folder: Path):
        self.spec, self.folder = spec, Path(folder).absolute()
        self._search = Search(spec, TrialMaker(spec))
        finished = filter(None, map(self._finished, self._search.planned))
        self.progress = Progress(spec, self._search.total, {record.id: record for record in finished})
        self.repeated = self._search.repeated
        self._waiting: list[Trial] = []  # to be handed out again
        self._running: dict[Future, Trial] = {}
        self._stopped, self._deaths = False, 0

    def stop(self) -> None:
        """End `run` soon, from another thread."""
        self._stopped = True

    def run(
        self, executor: LocalPool | Cluster, on_change: Callable[[Progress], None] = lambda progress: None
    ) -> Progress:
        """Run the unfinished trials, on an executor of `open_executor`; `on_change` gets the progress.

        Raises ClusterError if the scheduler or all workers have gone, or workers do not fit; RunError if the folder
        cannot be used, or workers die again and again.
        """
        try:
            self.folder.mkdir(0o700, parents=True, exist_ok=True)
            with run_lock(self.folder):
                return self._run(executor, on_change)
        except OSError as error:
            raise RunError(
                f"{error.filename or self.folder} cannot be written ({error.strerror}): finished trials stay; make "
                "room, or the folder writable, and run the same command again"
            ) from None

    def _run(self, executor: LocalPool | Cluster, on_change: Callable[[Progress], None]) -> Progress:
        progress, begin = self.progress, time.monotonic()
        had_worker = begin

        def say(note: str) -> None:
            progress.workers, progress.note = executor.workers, note
            on_change(progress)

        self._waiting = [trial for trial in self._search.open(self.folder) if not self._is_done(trial)]
        if self._search.note:
            say(f"note: {self._search.note}")
        before = len(progress.records)
        executor.begin()
        try:
            while not self._stopped:
                if self._hand_out(executor):
                    say("")
                if not self._running:
                    break
                done, _ = wait(self._running, timeout=LOOK_SECONDS, return_when=FIRST_COMPLETED)
                executor.check()
                had_worker = time.monotonic() if executor.workers else had_worker
                if time.monotonic() > had_worker + NO_WORKER_SECONDS:
                    raise ClusterError(
                        f"no worker for {NO_WORKER_SECONDS / 60:.0f} minutes; finished trials stay: start some, and "
                        "run the same command again to go on"
                    )
                if executor.workers != progress.workers:
                    say("" if executor.workers else "no workers; waiting for one")
                if any([self._take(self._running.pop(future), future) for future in done]):
                    self._restart(executor)
                if done:
                    gained = len(progress.records) - before
                    left = progress.total - len(progress.records)
                    progress.seconds_left = (time.monotonic() - begin) * left / gained if gained else None
                    say("")
        except KeyboardInterrupt:
            with NoInterrupt():
                self._end_trials(executor)
            raise
        if self._stopped:
            self._end_trials(executor)
        say("stopped" if self._stopped else "")
        return progress

    def _hand_out(self, executor: LocalPool | Cluster) -> bool:
        """Hand out trials to the free workers; returns whether there were some."""
        some = False
        while len(self._running) < max(1, executor.workers) and (trial := self._next()) is not None:
            folder = self.folder / trial.id
            folder.mkdir(0o700, exist_ok=True)
            if trial.module is not None:
                write_module(folder, *trial.module)
            task = Task(trial, self.spec.name, folder, inodes(self.folder), identity(), self._search.place(trial))
            try:
                self._running[executor.submit(run_trial, task)] = trial
            except BrokenExecutor:  # a process died since
                self._waiting.insert(0, trial)
                self._restart(executor)
                continue
            self.progress.running.add(trial.id)
            some = True
        return some

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
        if record := self._finished(trial):
            self._end(trial, record)
        return record is not None

    def _finished(self, trial: Trial) -> RunRecord | None:
        """Return the record of a trial that is complete in the folder, or ended early."""
        folder = self.folder / trial.id
        record = read_run(folder) if (folder / RUN_FILE).exists() else None
        return record if record is not None and record.status in (COMPLETE, PRUNED) else None

    def _end(self, trial: Trial, record: RunRecord) -> None:
        value = record.value(self.spec.objective or "") if record.status == COMPLETE else None
        self._search.tell(trial, value, record.status == PRUNED)
        self.progress.records[record.id] = record

    def _take(self, trial: Trial, future: Future) -> bool:
        """Take the result of a trial; returns whether its worker died and it is to be handed out again."""
        self.progress.running.discard(trial.id)
        try:
            files = future.result()
            for name in files:
                write_file(self.folder / trial.id / name, files[name])
            if trial.module is not None:  # a worker of another machine may have another secret
                seal_module(self.folder / trial.id, *trial.module)
            record = read_run(self.folder / trial.id)
        except BrokenExecutor:
            self._waiting.append(trial)
            return True
        except ClusterError:
            raise
        except CancelledError:
            raise ClusterError(
                "the cluster has cancelled a trial; finished trials stay: run the same command again to go on"
            ) from None
        except Exception as error:  # whatever a worker raised
            record = self._failed(trial, error)
        if record.status == STOPPED:  # by a signal to its worker
            self._waiting.append(trial)
            return False
        self._deaths = 0
        self._end(trial, record)
        return False

    def _failed(self, trial: Trial, error: BaseException) -> RunRecord:
        """Record a trial that its worker could not run; a later run of the sweep tries it again."""
        try:
            record = read_run(self.folder / trial.id)
        except BttlabError:
            record = trial.record(self.spec.name, device="")
        record.fail(error)
        record.write(self.folder / trial.id)
        return record

    def _restart(self, executor: LocalPool | Cluster) -> None:
        """Hand out again all that a broken executor had, from their last checkpoints."""
        self._deaths += 1
        if self._deaths > MOST_DEATHS:
            raise RunError(
                f"workers died {self._deaths} times, and no trial has ended since; give fewer with --workers, or see "
                "whether the memory suffices"
            )
        self._waiting += self._running.values()
        self._running.clear()
        self.progress.running.clear()
        executor.restart()

    def _end_trials(self, executor: LocalPool | Cluster) -> None:
        executor.stop()
        wait(self._running, timeout=STOP_SECONDS)
        self.progress.running.clear()
