"""A trial, in the process of a worker: an ordinary run, in the sweep's folder if the worker sees it."""

import contextlib
import hashlib
import math
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import bttlab
from bttlab.data import epoch_lengths
from bttlab.estimate.card import estimate
from bttlab.estimate.constants import MODEL_VERSION
from bttlab.runs.checkpoint import BEST, CheckpointError, CheckpointStore
from bttlab.runs.metrics import METRICS_FILE
from bttlab.runs.module import model_of_source, write_module
from bttlab.runs.progress import NoProgress
from bttlab.runs.record import COMPLETE, LATEST, PRUNED, RUN_FILE, STOPPED, RunRecord, git_state, versions
from bttlab.runs.run import Run
from bttlab.runs.stop import StopRequested
from bttlab.runs.sweep.pruning import StudyTrial
from bttlab.runs.sweep.trials import CARD, Trial, estimated_model
from bttlab.runs.u50 import U50Figures, card_figures
from bttlab.util.errors import BttlabError
from bttlab.util.locks import LOCK_FILE

SAVE_SECONDS = 5.0  # that a trial has to end by itself after the sweep's process was killed
SENT = (METRICS_FILE, BEST, LATEST, RUN_FILE)  # the record comes last
CARD_WAIT_SECONDS = 3600.0  # for a card that another trial trains on
_stop: Any = None  # an event of `multiprocessing` that ends this process's trials


class ClusterError(BttlabError):
    """Raised if a sweep cannot run on a cluster."""


def take_stop_event(event: Any) -> None:
    """Keep the event that ends trials; this process ends if the one that started it is killed."""
    global _stop
    _stop = event
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    multiprocessing.parent_process().join()  # pyright: ignore[reportOptionalMemberAccess]
    _stop.set()
    while True:  # a trial saves its state on the first signal; a process without a trial ends
        time.sleep(SAVE_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)


@dataclass(frozen=True)
class Task:
    trial: Trial
    sweep: str
    folder: Path
    inodes: list[int]  # that tell the sweep's folder from another machine's of the same name
    identity: dict[str, str]  # of the process that hands it out
    study: StudyTrial | None = None  # where it reports its epochs; None without a pruner, or away from the folder


class _TrialCallback(U50Figures):
    """Names the trial in the record; ends the run if its sweep has ended, or Dask has cancelled its task."""

    def __init__(self, task: Task, run: Run) -> None:
        settings = run.settings
        super().__init__(run.model, run.lengths, settings.optimizer, settings.flow, settings.cards)
        self._task, self._run, self._worker = task, run, None
        self._reason = ""  # why the trial ends early
        if "distributed" in sys.modules:
            with contextlib.suppress(ValueError):  # this process is no worker
                self._worker = sys.modules["distributed"].get_worker()
                self._key = self._worker.get_current_task()

    def before(self, count: int) -> None:
        tasks = self._worker.state.tasks if self._worker else {}
        is_cancelled = tasks and (self._key not in tasks or tasks[self._key].state == "cancelled")
        if is_cancelled or self._reason or (_stop is not None and _stop.is_set()):
            raise StopRequested

    def evaluated(self, count: int, scores: dict[str, Any]) -> None:
        super().evaluated(count, scores)
        run, study = self._run, self._task.study
        epoch = run.epochs_done + 1
        if study is not None and epoch < run.settings.epochs:
            value = study.value(scores, float(np.mean(run.losses, dtype=np.float64)))
            if value is not None and math.isfinite(value):
                self._reason = study.reason_to_end(self._task.folder.parent, epoch, value)

    def on_record(self, record: RunRecord) -> None:
        trial = self._task.trial
        record.id, record.name, record.sweep = trial.id, trial.name, self._task.sweep
        record.configuration = dict(trial.configuration)
        if self._reason and record.status == STOPPED:
            record.status, record.error = PRUNED, self._reason
        super().on_record(record)


def run_trial(task: Task) -> dict[str, bytes]:
    """Run a trial; its record says how the training failed, if it did.

    Returns files of the run; none if this machine sees the sweep's folder, which has them then. Raises ClusterError if
    this process has other versions or sources than the sweep's.
    """
    here = identity()
    for what in here | task.identity:
        if here.get(what) != task.identity.get(what):
            raise ClusterError(
                f"a worker has {what} {here.get(what, 'none')}, the sweep {task.identity.get(what, 'none')}; give both "
                "the same checkout and the same packages: results are to be equal to the bit"
            )
    run = _estimate if task.trial.settings is None else _train
    if inodes(task.folder.parent) == task.inodes:
        run(task)
        return {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if task.trial.module is not None:
            write_module(folder, *task.trial.module)
        run(replace(task, folder=folder, study=None))
        return {name: (folder / name).read_bytes() for name in SENT if (folder / name).exists()}


def inodes(folder: Path) -> list[int]:
    """Return the numbers that the file system gives a sweep's folder and its lock; on every machine that sees them."""
    try:
        return [path.stat().st_ino for path in (folder, folder / LOCK_FILE)]
    except OSError:
        return []


def _train(task: Task) -> None:
    trial, store, checkpoint = task.trial, CheckpointStore(task.folder), None
    settings: Any = trial.settings
    with contextlib.suppress(CheckpointError):  # it begins again
        checkpoint, _ = store.load()
    model = settings.config
    if trial.module is not None:  # what the sweep sent: nothing that lies in the folder is run
        model, _ = model_of_source(task.folder, settings.config, *trial.module, settings.seed, checkpoint)
    run = Run(task.folder, settings, trial.corpus, store, checkpoint, model=model)
    callback, opened = _TrialCallback(task, run), run.open_trainer(wait=CARD_WAIT_SECONDS)
    try:
        run.train(opened.trainer, opened.device, NoProgress(), opened.provenance, callback=callback)
    except BttlabError:
        if not (task.folder / RUN_FILE).exists():  # else the record says why, as of a diverged run
            raise
    finally:
        if settings.device == CARD:
            from bttlab.card import release_card

            release_card(opened.trainer.device)  # pyright: ignore[reportAttributeAccessIssue]  # a TrainerDriver


def _estimate(task: Task) -> None:
    """Estimate a configuration on the U50; an epoch is the corpus's training split."""
    trial = task.trial
    model, values = estimated_model(trial.configuration, trial.corpus)
    lengths = epoch_lengths(trial.corpus, model.sequence_length)
    estimated = estimate(model, lengths, values["optimizer"], values["flow"], values["clock_mhz"])
    record = trial.record(task.sweep, f"a model of the U50 ({MODEL_VERSION})")
    record.figures, record.versions, record.git = card_figures(estimated), versions(), git_state()
    record.end(COMPLETE)
    record.write(task.folder)


@cache
def identity() -> dict[str, str]:
    """Return the versions and a digest of the sources of this process; imports what a trial needs first."""
    import seqeval.metrics  # noqa: F401

    package, digest = Path(bttlab.__file__).parent, hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return versions() | {"sources of bttlab": digest.hexdigest()[:12]}
