"""Running a sweep: chunks of trials go out to workers, checkpoints and figures come back, and only this process writes.

A worker gets a trial's folder as bytes and returns it as bytes. So no file system is shared, a worker that dies costs
at most the chunk that it was at, and nothing is written twice: a trial's folder is named by the digest of its
configuration, and what is finished there is never touched again.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue

from distributed import CancelledError, Client, Future, KilledWorker
from distributed.comm import CommClosedError

from bttlab.data import Vocabulary, encode
from bttlab.errors import BttlabError
from bttlab.experiments.keep import OnRecord, enter, entering
from bttlab.experiments.record import COMPLETE, FAILED, RUN_FILE, RunRecord, read_run
from bttlab.files import replace_whole
from bttlab.sweep.cluster import START_SECONDS, ClusterError, check_cluster, connect
from bttlab.sweep.search import Listed, Proposed, Search
from bttlab.sweep.spec import SweepSpec
from bttlab.sweep.trials import CARD, Trial, TrialMaker
from bttlab.sweep.worker import FILES, Chunk, Result, estimate_trial, train_chunk
from bttlab.train.files import held
from bttlab.train.settings import RunError

AHEAD = 2  # trials handed out beyond the workers there are, so that none waits for this process
LOOK_SECONDS = 1.0
PATIENCE_SECONDS = 120  # with a scheduler that is gone


class SweepError(BttlabError):
    """A sweep that cannot run or go on."""


@dataclass
class Progress:
    """Where a sweep stands.

    Attributes
    ----------
    total : int
        Trials.
    records : dict of str to RunRecord
        Those that have ended, by id; the failed ones among them.
    parts : dict of str to float
        How much of each trial under way is done, 0 to 1.
    best : RunRecord or None
    workers : int
    seconds_left : float or None
        By the pace so far; None while there is none.
    busy_seconds : float
        That workers have spent on the chunks that came back, summed.
    note : str
        What is going on beside training.
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
    """A sweep and its folder, which has a run's folder for each trial; all is checked before anything starts.

    Parameters
    ----------
    spec : SweepSpec
    folder : path
        What is finished in it stays; what was begun is continued.

    Attributes
    ----------
    progress : Progress

    Raises
    ------
    SpecError, SweepError
        If the specification does not hold, or a record in the folder cannot be read.
    """

    def __init__(self, spec: SweepSpec, folder: Path):
        self.spec, self.folder = spec, Path(folder)
        maker = TrialMaker(spec)
        before = [read_run(path.parent) for path in sorted(self.folder.glob(f"*/{RUN_FILE}"))]
        self._search: Search = Proposed(spec, maker, before) if spec.search == "optuna" else Listed(maker.all())
        self.progress = Progress(self._search.total)
        self._entering: dict[str, OnRecord] = {}
        self._stopped = False
        if isinstance(self._search, Proposed):
            for record in self._search.done:
                self._end(record)

    @property
    def resources(self) -> dict[str, float]:
        """What trials take of their workers; one on a card takes the card besides."""
        device = self.spec.fixed.get("device")
        cards = CARD in (self.spec.vary.get("device") or ()) or device == CARD
        return ({CARD: 1} if cards else {}) | dict(self.spec.resources)

    def resources_of(self, trial: Trial) -> dict[str, float]:
        """What a trial takes of its worker."""
        on_card = trial.settings is not None and trial.settings.device == CARD
        return {name: amount for name, amount in self.resources.items() if on_card or name != CARD}

    def stop(self) -> None:
        """Have `run` end soon, from another thread; what has come back stays."""
        self._stopped = True

    def run(self, client: Client, on_change: Callable[[Progress], None] = lambda progress: None) -> Progress:
        """Run the trials that are not finished.

        Parameters
        ----------
        client : Client
            From `open_cluster`.
        on_change : callable
            Gets the progress whenever there is some.

        Raises
        ------
        ClusterError
            If the cluster does not fit, or its scheduler has gone and does not come back.
        SweepError
            If the folder cannot be used.
        """
        check_cluster(client, self.resources)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with held(self.folder):
                return _Loop(self, client, on_change).run()
        except RunError:
            raise SweepError(f"another sweep runs in {self.folder}; wait for it, or choose another --out") from None
        except OSError as error:
            raise SweepError(
                f"{error.filename or self.folder} cannot be written ({error.strerror}): what came back before stays; "
                "make room, or the folder writable, and run the same command again"
            ) from None

    # --- trials

    def _next(self) -> Trial | None:
        """The next trial that is not finished; what is finished is counted."""
        while True:
            trial = self._search.next()
            if trial is None:
                return None
            if not (self.folder / trial.id / RUN_FILE).exists():
                return trial
            record = read_run(self.folder / trial.id)
            if record.status != COMPLETE:
                return trial
            self._end(record)
            self._search.tell(trial, record.value(self.spec.objective))

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

    def _keep(self, trial: Trial, result: Result) -> RunRecord:
        """Write what came back: metrics, then the checkpoint that goes with them, then the record."""
        folder, record = self.folder / trial.id, result.record
        folder.mkdir(exist_ok=True)
        for name, data in result.files.items():
            if name != RUN_FILE:
                replace_whole(folder / name, data)
        record.id, record.name, record.sweep = trial.id, trial.name, self.spec.name
        record.configuration = trial.configuration
        if trial.settings is None:
            enter(record, folder)
        else:
            if trial.id not in self._entering:
                self._entering[trial.id] = _entering(trial)
            self._entering[trial.id](record, folder)
        record.write(folder)
        return record


def _entering(trial: Trial) -> OnRecord:
    """What puts a trial into the index, with what its training would take of a U50."""
    config, corpus = trial.settings.config, trial.corpus
    vocabulary = Vocabulary.from_sentences(corpus.train.words, config.vocabulary_size)
    lengths = encode(corpus.train, vocabulary, corpus, config).lengths
    return entering(config, lengths, trial.settings.optimizer.name, trial.settings.flow)


class _Loop:
    """One run of a sweep on a client."""

    def __init__(self, sweep: Sweep, client: Client, on_change: Callable[[Progress], None]):
        self._sweep, self._client, self._on_change = sweep, client, on_change
        self._address, self._credentials = client.scheduler.address, client.security
        self._own = len(client.cluster.workers) if client.cluster is not None else 0  # workers of this machine
        self._last_seen = time.monotonic()  # of any worker
        self._running: dict[Future, Trial] = {}
        self._back: SimpleQueue[tuple[Future, Result | Exception | None]] = SimpleQueue()
        self._order: dict[str, int] = {}
        # Of trials whose workers died: Dask blames all that a worker had before it, so each goes once more, alone.
        self._suspects: list[Trial] = []
        self._alone: set[str] = set()
        self._begin, self._done_before = time.monotonic(), None

    def run(self) -> Progress:
        sweep = self._sweep
        try:
            while not sweep._stopped:
                try:
                    self._hand_out()
                    if not self._running:
                        break
                    self._take_in()
                except (CommClosedError, ConnectionError, TimeoutError):
                    self._reconnect()
            if sweep._stopped:
                sweep.progress.parts.clear()
            self._say("stopped" if sweep._stopped else "")
        finally:
            with contextlib.suppress(OSError, TimeoutError):  # a scheduler that is gone has nothing to cancel
                self._client.cancel(list(self._running), force=True)
        return sweep.progress

    def _hand_out(self) -> None:
        workers = len(self._client.scheduler_info(n_workers=-1)["workers"])
        self._sweep.progress.workers = workers
        if workers:
            self._last_seen = time.monotonic()
        elif self._own:
            self._start_again()
        while len(self._running) < workers + AHEAD:
            trial = self._sweep._next()
            if trial is None:
                break
            self._submit(trial)
        if not self._running and self._suspects:
            self._alone.add(self._suspects[0].id)
            self._submit(self._suspects.pop(0))
        self._say(self._missing())

    def _missing(self) -> str:
        """What to say where nobody is left to work."""
        if self._sweep.progress.workers:
            return ""
        if self._own:
            return "the local workers have gone; others start"
        return f"no workers at {self._address}; waiting for one"

    def _start_again(self) -> None:
        """Start workers of this machine anew, where nobody else does."""
        if time.monotonic() - self._last_seen > START_SECONDS:
            raise ClusterError("the local workers have gone, and no others start; run the same command again to go on")
        self._client.cluster.scale(self._own)

    def _submit(self, trial: Trial) -> None:
        # What was begun first ends first, so that finished trials come early.
        priority = -self._order.setdefault(trial.id, len(self._order))
        options = {"resources": self._sweep.resources_of(trial) or None, "priority": priority, "pure": False}
        if trial.settings is None:
            future = self._client.submit(estimate_trial, trial.configuration, trial.corpus, **options)
        else:
            seconds = self._sweep.spec.chunk_seconds
            chunk = Chunk(trial.settings, trial.corpus, self._sweep._files(trial), seconds)
            future = self._client.submit(train_chunk, chunk, **options)
        self._running[future] = trial
        self._client.loop.add_callback(self._fetch, future)
        self._sweep.progress.parts.setdefault(trial.id, 0.0)

    async def _fetch(self, future: Future) -> None:
        """Take what a chunk came to off its worker as soon as it has ended, whatever the sweep is busy with.

        What stays on a worker dies with it, and Dask would compute it again.
        """
        try:
            outcome = await future
        except Exception as error:
            gone = future.status != "error" and isinstance(error, CancelledError | OSError)
            outcome = None if gone else error  # None: it is the scheduler that has gone
        future.release()
        self._back.put((future, outcome))

    def _take_in(self) -> None:
        try:
            future, outcome = self._back.get(timeout=LOOK_SECONDS)
        except Empty:
            future = None
        if future in self._running:  # else of a scheduler before
            if outcome is None:
                raise ConnectionError
            trial = self._running.pop(future)
            if isinstance(outcome, KilledWorker) and trial.id not in self._alone:
                self._suspects.append(trial)
            elif isinstance(outcome, Exception):
                self._fail(trial, outcome)
            else:
                self._take(trial, outcome)
            self._say(self._missing())
        if self._client.status != "running":
            raise ConnectionError

    def _take(self, trial: Trial, result: Result) -> None:
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
        """A trial that its worker could not run; a later run of the sweep tries it again."""
        folder = self._sweep.folder / trial.id
        try:
            record = read_run(folder)
        except BttlabError:
            record = RunRecord("training" if trial.settings else "estimate", trial.name, trial.configuration, "")
        record.end(FAILED, str(error) if isinstance(error, BttlabError) else f"{type(error).__name__}: {error}")
        self._sweep._keep(trial, Result(record))
        self._sweep._end(record)
        self._sweep._search.tell(trial, None)

    def _reconnect(self) -> None:
        """Wait for a scheduler that has gone; what was under way goes on from its last checkpoint here."""
        trials, self._running = list(self._running.values()), {}
        if self._own:
            raise ClusterError("the local workers have gone; run the same command again to go on")
        self._say(f"the scheduler at {self._address} has gone; waiting for it")
        with contextlib.suppress(TimeoutError):
            self._client.close(timeout=1)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                self._client = connect(self._address, 5, self._credentials)
                self._client.wait_for_workers(1, timeout=max(1, deadline - time.monotonic()))
                check_cluster(self._client, self._sweep.resources)
                break
            except (ClusterError, TimeoutError) as error:
                if time.monotonic() > deadline or self._sweep._stopped:
                    raise ClusterError(
                        f"the scheduler at {self._address} does not come back ({error}): what has come back stays; run "
                        "the same command again to go on"
                    ) from None
                time.sleep(LOOK_SECONDS)
        for trial in trials:
            self._submit(trial)

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
        self._on_change(progress)
