"""Run a sweep: send chunks of trials to workers, and write the checkpoints and figures that come back.

A worker gets a trial's folder as bytes and returns it as bytes. So no file system is shared, and a worker that dies
costs at most its chunk. A trial's folder is named by the digest of its configuration; a finished one is not run again.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from distributed import CancelledError, Client, Future, as_completed
from distributed.comm import CommClosedError

from bttlab.commands.models import epoch_lengths
from bttlab.runs.files import run_lock
from bttlab.runs.keep import OnRecord, index_run, u50_callback
from bttlab.runs.module import MODULE_FILE, keep_module
from bttlab.runs.record import COMPLETE, FAILED, RUN_FILE, RunRecord, read_run
from bttlab.runs.settings import RunError
from bttlab.sweep.cluster import ClusterError, check_cluster
from bttlab.sweep.search import Proposed, Search
from bttlab.sweep.spec import SweepSpec
from bttlab.sweep.trials import CARD, Trial, TrialMaker
from bttlab.sweep.worker import FILES, Chunk, TrialResult, estimate_trial, train_chunk
from bttlab.util.errors import BttlabError
from bttlab.util.files import write_file

AHEAD = 2  # trials handed out beyond the workers there are, so that none waits for this process
LOOK_SECONDS = 0.1
SAY_SECONDS = 5.0  # without news: who watches sees that the sweep goes on


class SweepError(BttlabError):
    """Raised if a sweep cannot run or continue."""


@dataclass
class Progress:
    """Progress of a sweep.

    Attributes
    ----------
    total : int
        Trials.
    records : dict of str to RunRecord
        Trials that have ended or failed, by id.
    parts : dict of str to float
        Fraction done of each running trial, 0 to 1.
    seconds_left : float or None
        Estimate; None at the beginning.
    busy_seconds : float
        Total time of the workers on returned chunks.
    note : str
        Other activity, such as waiting for workers.
    """

    total: int
    records: dict[str, RunRecord] = field(default_factory=dict)
    parts: dict[str, float] = field(default_factory=dict)
    best: RunRecord | None = None
    workers: int = 0
    seconds_left: float | None = None
    busy_seconds: float = 0.0
    note: str = ""

    @property
    def failed(self) -> int:
        """Trials that failed."""
        return sum(record.status == FAILED for record in self.records.values())


class Sweep:
    """A sweep and its folder, with a run's folder for each trial. Trials are checked before anything starts.

    Parameters
    ----------
    folder : path
        Finished trials in it stay; others are continued.

    Raises
    ------
    SpecError, SweepError
        If the specification does not hold, or a record in the folder cannot be read.
    """

    def __init__(self, spec: SweepSpec, folder: Path):
        self.spec, self.folder = spec, Path(folder)
        self._maker = TrialMaker(spec)
        self._before: list[RunRecord] | None = None
        self._on_record: dict[str, OnRecord] = {}
        self._stopped = False
        self._read_folder()

    @property
    def resources(self) -> dict[str, float]:
        """Resources that trials take of their workers."""
        device = self.spec.fixed.get("device")
        cards = CARD in (self.spec.vary.get("device") or ()) or device == CARD
        return ({CARD: 1} if cards else {}) | dict(self.spec.resources)

    def resources_of(self, trial: Trial) -> dict[str, float]:
        """Return the resources that a trial takes of its worker."""
        on_card = trial.settings is not None and trial.settings.device == CARD
        return {name: amount for name, amount in self.resources.items() if on_card or name != CARD}

    def stop(self) -> None:
        """End `run` soon, from another thread."""
        self._stopped = True

    def run(self, client: Client, on_change: Callable[[Progress], None] = lambda progress: None) -> Progress:
        """Run the unfinished trials.

        Parameters
        ----------
        client : Client
            From `open_cluster`.
        on_change : callable
            Gets the progress whenever there is some.

        Raises
        ------
        ClusterError
            If the cluster does not fit, or its scheduler has gone.
        SweepError
            If the folder cannot be used.
        """
        check_cluster(client, self.resources)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with run_lock(self.folder):
                self._read_folder()  # another process may have run trials since
                return _Dispatcher(self, client, on_change).run()
        except RunError as error:
            raise SweepError(str(error)) from None
        except OSError as error:
            raise SweepError(
                f"{error.filename or self.folder} cannot be written ({error.strerror}): what came back before stays; "
                "make room, or the folder writable, and run the same command again"
            ) from None

    def _read_folder(self) -> None:
        """Set up the search from the trials that the folder holds."""
        before = [read_run(path.parent) for path in sorted(self.folder.glob(f"*/{RUN_FILE}"))]
        if before == self._before:
            return
        if self.spec.search == "optuna":
            self._search: Search = Proposed(self.spec, self._maker, before)
        elif self._before is None:  # a list does not change, and `_next` looks at the folder
            self._search = Search(self._maker.all())
        self._before, self.progress = before, Progress(self._search.total)
        for record in getattr(self._search, "done", ()):
            self._end(record)

    # --- trials

    def _next(self) -> Trial | None:
        """Return the next unfinished trial, or None; count the finished ones."""
        while (trial := self._search.next()) is not None:
            folder = self.folder / trial.id
            folder.mkdir(exist_ok=True)
            if not (folder / RUN_FILE).exists() or (record := read_run(folder)).status != COMPLETE:
                return trial
            self._end(record)
            self._search.tell(trial, record.value(self.spec.objective))
        return None

    def _end(self, record: RunRecord) -> None:
        self.progress.records[record.id] = record
        self.progress.parts.pop(record.id, None)
        value, best = record.value(self.spec.objective), self.progress.best
        if record.status == COMPLETE and value is not None:
            better = best is None or (value > best.value(self.spec.objective)) == self.spec.maximize
            if better and (best is None or value != best.value(self.spec.objective)):
                self.progress.best = record

    def _files(self, trial: Trial) -> dict[str, bytes]:
        folder = self.folder / trial.id
        return {name: (folder / name).read_bytes() for name in FILES if (folder / name).exists()}

    def _keep(self, trial: Trial, result: TrialResult) -> RunRecord:
        """Write a returned trial: a module's file, metrics, the checkpoint, then the record."""
        folder, record = self.folder / trial.id, result.record
        if trial.module is not None:
            keep_module(folder, trial.module)
        for name, data in result.files.items():
            if name != RUN_FILE:
                write_file(folder / name, data)
        record.id, record.name, record.sweep = trial.id, trial.name, self.spec.name
        record.configuration = trial.configuration
        if trial.settings is not None:
            if trial.id not in self._on_record:
                self._on_record[trial.id] = _u50_callback(trial)
            self._on_record[trial.id](record)
        record.write(folder)
        index_run(record, folder)
        return record


def _u50_callback(trial: Trial) -> OnRecord:
    """Return a callback that adds to a trial's record what the model of the U50 says of it."""
    config, settings = trial.module or trial.settings.config, trial.settings
    return u50_callback(config, epoch_lengths(trial.corpus, config), settings.optimizer.rule, settings.flow)


class _Dispatcher:
    """Sends the trials of a sweep to the workers of a client, and takes the results."""

    def __init__(self, sweep: Sweep, client: Client, on_change: Callable[[Progress], None]):
        self._sweep, self._client, self._on_change = sweep, client, on_change
        self._address = client.scheduler.address
        # It fetches a result as soon as a chunk has ended: one that stays on a worker is lost with it.
        self._completed = as_completed(with_results=True, raise_errors=False, loop=client.loop)
        self._running: dict[Future, Trial] = {}
        self._order: dict[str, int] = {}
        self._begin, self._done_before = time.monotonic(), None
        self._said = time.monotonic()

    def run(self) -> Progress:
        sweep = self._sweep
        try:
            while not sweep._stopped:
                self._hand_out()
                if not self._running:
                    break
                while not (sweep._stopped or self._completed.has_ready()):
                    self._check_cluster()
                    time.sleep(LOOK_SECONDS)
                for future, outcome in self._completed.next_batch(block=False):
                    self._take_in(self._running.pop(future), outcome)
                    future.release()
            if sweep._stopped:
                sweep.progress.parts.clear()
            self._say("stopped" if sweep._stopped else "")
        except (CommClosedError, ConnectionError, TimeoutError):
            raise self._gone() from None
        finally:
            if self._client.status == "running":  # a scheduler that is gone has nothing to cancel
                with contextlib.suppress(OSError, TimeoutError):
                    self._client.cancel(list(self._running), force=True)
        return sweep.progress

    def _check_cluster(self) -> None:
        if self._client.status != "running":
            raise self._gone()
        workers = len(self._client.scheduler_info(n_workers=-1)["workers"])
        if workers != self._sweep.progress.workers or time.monotonic() > self._said + SAY_SECONDS:
            self._sweep.progress.workers = workers
            if self._running or not workers:  # else the first trials are handed out next
                self._say("" if workers else f"no workers at {self._address}; waiting for one")

    def _gone(self) -> ClusterError:
        return ClusterError(
            f"the scheduler at {self._address} has gone; what has come back stays: run the same command again to go on"
        )

    def _hand_out(self) -> None:
        self._check_cluster()
        while len(self._running) < self._sweep.progress.workers + AHEAD:
            trial = self._sweep._next()
            if trial is None:
                break
            self._submit(trial)
        self._say("")

    def _submit(self, trial: Trial) -> None:
        # What was begun first ends first, so that finished trials come early.
        priority = -self._order.setdefault(trial.id, len(self._order))
        options = {"resources": self._sweep.resources_of(trial) or None, "priority": priority, "pure": False}
        if trial.settings is None:
            future = self._client.submit(estimate_trial, trial.configuration, trial.corpus, **options)
        else:
            files = self._sweep._files(trial) | ({MODULE_FILE: trial.module.source} if trial.module else {})
            chunk = Chunk(trial.settings, trial.corpus, files, self._sweep.spec.chunk_seconds)
            future = self._client.submit(train_chunk, chunk, **options)
        self._running[future] = trial
        self._completed.add(future)
        self._sweep.progress.parts.setdefault(trial.id, 0.0)

    def _take_in(self, trial: Trial, outcome: TrialResult | tuple | BaseException) -> None:
        """Keep what a worker returned, or (type, exception, traceback) of what it raised."""
        if isinstance(outcome, TrialResult):
            self._take(trial, outcome)
        elif isinstance(outcome, CancelledError):
            raise self._gone()
        else:
            self._fail(trial, outcome[1] if isinstance(outcome, tuple) else outcome)

    def _take(self, trial: Trial, result: TrialResult) -> None:
        sweep = self._sweep
        sweep.progress.busy_seconds += result.seconds
        record = sweep._keep(trial, result)
        if record.status in (COMPLETE, FAILED):
            sweep._end(record)
            sweep._search.tell(trial, record.value(sweep.spec.objective) if record.status == COMPLETE else None)
            return
        settings = trial.settings
        epoch = min(settings.samples or len(trial.corpus.train), len(trial.corpus.train))
        sweep.progress.parts[trial.id] = result.samples / (settings.epochs * epoch)
        self._submit(trial)

    def _fail(self, trial: Trial, error: BaseException) -> None:
        """Record a trial that its worker could not run; a later run of the sweep tries it again."""
        folder = self._sweep.folder / trial.id
        try:
            record = read_run(folder)
        except BttlabError:
            record = RunRecord("training" if trial.settings else "estimate", trial.name, trial.configuration, "")
        record.end(FAILED, str(error) if isinstance(error, BttlabError) else f"{type(error).__name__}: {error}")
        self._sweep._keep(trial, TrialResult(record))
        self._sweep._end(record)
        self._sweep._search.tell(trial, None)

    def _say(self, note: str) -> None:
        progress = self._sweep.progress
        done = len(progress.records) + sum(progress.parts.values())
        if self._done_before is None:
            self._done_before, self._begin = done, time.monotonic()
        gained = done - self._done_before
        elapsed = time.monotonic() - self._begin
        paced = gained > 0 and progress.workers > 0  # without workers nothing is gained
        progress.seconds_left = elapsed * (progress.total - done) / gained if paced else None
        progress.note = note
        self._said = time.monotonic()
        self._on_change(progress)
