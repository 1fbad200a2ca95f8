"""A trial, in the process of a worker: an ordinary run, in its folder if that is shared, else in a temporary one."""

import contextlib
import hashlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import bttlab
from bttlab.data import epoch_lengths
from bttlab.estimate.card import estimate
from bttlab.estimate.constants import MODEL_VERSION
from bttlab.runs.checkpoint import CheckpointError, CheckpointStore
from bttlab.runs.devices import OpenedTrainer, open_trainer
from bttlab.runs.module import model_of_run, write_module
from bttlab.runs.plan import Control
from bttlab.runs.progress import NoProgress
from bttlab.runs.provenance import git_state, versions
from bttlab.runs.record import COMPLETE, RunRecord, read_run
from bttlab.runs.run import Run
from bttlab.runs.stop import StopRequested
from bttlab.runs.sweep.trials import CARD, Trial, estimated_model
from bttlab.runs.u50 import card_figures, u50_callback
from bttlab.util.errors import BttlabError
from bttlab.util.locks import LOCK_FILE

if TYPE_CHECKING:
    from bttlab.compiler.module import ModuleModel
    from bttlab.model import ModelConfig

SAVE_SECONDS = 5.0  # that a trial has to end by itself after the sweep's process was killed
CARD_WAIT_SECONDS = 3600.0  # for a card that another trial trains on
_stop: Any = None  # an event of `multiprocessing` that ends this process's trials


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
    trial: Trial  # without its module
    sweep: str
    folder: Path  # of the trial's run
    mark: str  # name of a file in the sweep's folder, by which a worker knows that it is shared
    source: bytes = b""  # of the module's file
    beside: dict[str, bytes] = field(default_factory=dict)  # the files that it imports


@dataclass(frozen=True)
class TrialResult:
    record: RunRecord
    files: dict[str, bytes] = field(default_factory=dict)  # of the run's folder, if that is not shared


class _UntilStopped(Control):
    """Ends a run if its sweep has ended, or Dask has cancelled its task."""

    def __init__(self) -> None:
        self._worker = None
        if "distributed" in sys.modules:
            with contextlib.suppress(ValueError):  # this process is no worker
                self._worker = sys.modules["distributed"].get_worker()
                self._key = self._worker.get_current_task()

    def before(self, count: int) -> None:
        tasks = self._worker.state.tasks if self._worker else {}
        is_cancelled = tasks and (self._key not in tasks or tasks[self._key].state == "cancelled")
        if is_cancelled or (_stop is not None and _stop.is_set()):
            raise StopRequested


def run_trial(task: Task) -> TrialResult:
    """Run a trial. Faults of the training go into its record; faults of the worker are raised."""
    if task.trial.settings is None:
        return TrialResult(_estimate(task))
    if (task.folder.parent / task.mark).exists():
        return TrialResult(_train(task, task.folder))
    with TemporaryDirectory(prefix="bttlab-trial-") as name:
        folder = Path(name) / "run"
        record = _train(task, folder)
        paths = [path for path in folder.rglob("*") if path.is_file() and path.name != LOCK_FILE]
        return TrialResult(record, {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths})


def _train(task: Task, folder: Path) -> RunRecord:
    trial, store, checkpoint = task.trial, CheckpointStore(folder), None
    settings = trial.settings
    assert settings is not None, "a trial of a training has settings"
    if folder.exists():
        with contextlib.suppress(CheckpointError):  # it begins again
            checkpoint, _ = store.load()
    model: Any = settings.config
    if task.source:
        with TemporaryDirectory(prefix="bttlab-module-") as name:  # of 0700; who hands out a trial may run code
            write_module(Path(name), task.source, task.beside)
            model = model_of_run(Path(name), settings.config, trust=True, seed=settings.seed)
    module = None if model is settings.config else model
    run = Run(folder, settings, trial.corpus, store, checkpoint, module=module)
    lengths = epoch_lengths(trial.corpus, model.sequence_length)
    figures = u50_callback(model, lengths, settings.optimizer, settings.flow)

    def on_record(record: RunRecord) -> None:
        record.id, record.name, record.sweep, record.configuration = trial.id, trial.name, task.sweep, {}
        record.configuration |= trial.configuration
        figures(record)

    with opened_device(settings, model, lengths) as opened:
        with contextlib.suppress(BttlabError):  # a diverged run: its record says so
            run.train(
                opened.trainer, opened.device, NoProgress(), on_record, opened.provenance, control=_UntilStopped()
            )
    return read_run(folder)


def _estimate(task: Task) -> RunRecord:
    """Estimate a configuration on the U50; an epoch is the corpus's training split."""
    trial = task.trial
    model, values = estimated_model(trial.configuration)
    lengths = epoch_lengths(trial.corpus, model.sequence_length)
    estimated = estimate(model, lengths, values["optimizer"], values["flow"], values["clock_mhz"])
    record = RunRecord("estimate", trial.name, trial.configuration, f"a model of the U50 ({MODEL_VERSION})", trial.id)
    record = replace(record, figures=card_figures(estimated), versions=versions(), git=git_state(), sweep=task.sweep)
    record.end(COMPLETE)
    return record


@contextlib.contextmanager
def opened_device(
    settings: Any, model: "ModelConfig | ModuleModel", lengths: Mapping[int, int] | None = None
) -> Iterator[OpenedTrainer]:
    """Open the device of a trial on this worker; the context holds a card's lock.

    Parameters
    ----------
    lengths : mapping of int to int, optional
        As for `open_trainer`.

    Raises
    ------
    bttlab.card.CardBusyError
        If another process holds the card all the while.
    """
    if settings.device != CARD:
        yield open_trainer(model, settings.device, **_options(settings, lengths))
        return
    import pynq

    from bttlab.card import release_card

    try:
        yield _open_card(model, settings, lengths)
    finally:  # also of a card that did not take the overlay
        for number in cards():
            release_card(pynq.Device.devices[number])


def _options(settings: Any, lengths: Mapping[int, int] | None) -> dict[str, Any]:
    return {"flow": settings.flow, "overlay": settings.overlay, "lengths": lengths, "optimizer": settings.optimizer}


def cards() -> list[int]:
    """Return the numbers of the real cards here, in `pynq.Device.devices`."""
    import pynq

    from bttlab.card import EmulatedU50

    return [number for number, card in enumerate(pynq.Device.devices) if not isinstance(card, EmulatedU50)]


def _open_card(model: "ModelConfig | ModuleModel", settings: Any, lengths: Mapping[int, int] | None) -> OpenedTrainer:
    """Open the first card that is free, or wait for the first."""
    from bttlab.card import CardBusyError

    if not (attached := cards()):
        raise BttlabError(f"this worker offers the resource {CARD}, but PYNQ finds no card on its machine")
    options = _options(settings, lengths)
    for number in attached:
        with contextlib.suppress(CardBusyError):
            return open_trainer(model, str(number), **options)
    return open_trainer(model, str(attached[0]), wait=CARD_WAIT_SECONDS, **options)


def identity() -> dict[str, str]:
    """Return the versions and a digest of the sources of this process; imports what a trial needs first."""
    import seqeval.metrics  # noqa: F401

    package, digest = Path(bttlab.__file__).parent, hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return versions() | {"sources of bttlab": digest.hexdigest()[:12]}
