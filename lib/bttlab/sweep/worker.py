"""Work of a Dask worker: train a chunk of a trial, from files to files. Any worker can do the next chunk."""

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import bttlab
from bttlab.commands.models import epoch_lengths
from bttlab.data import Corpus
from bttlab.runs import CheckpointStore, Run, RunSettings
from bttlab.runs.devices import OpenedTrainer, open_trainer
from bttlab.runs.metrics_log import METRICS
from bttlab.runs.module import model_of_run
from bttlab.runs.progress import NoProgress
from bttlab.runs.record import COMPLETE, LATEST, RUN_FILE, RunRecord, read_run
from bttlab.sweep.trials import CARD, estimated_model
from bttlab.util.errors import BttlabError

if TYPE_CHECKING:
    from distributed import Worker

    from bttlab.compiler.module import ModuleModel
    from bttlab.model import ModelConfig

FILES = (METRICS, LATEST, RUN_FILE)  # of a run's folder, in the order in which they are to be written
CARD_WAIT_SECONDS = 600.0  # for a card that another process trains on: longer than a chunk and its scores


@dataclass(frozen=True)
class Chunk:
    """Input of a worker: a trial, and how long to train it."""

    settings: RunSettings
    corpus: Corpus  # sent along, so that workers need none of their own
    files: Mapping[str, bytes]  # the run's folder so far, and the file of a module
    seconds: float  # to train for, at least one sample


@dataclass(frozen=True)
class TrialResult:
    """State of a trial after a chunk."""

    record: RunRecord  # stopped, if there is more to do
    files: dict[str, bytes] = field(default_factory=dict)  # the run's folder
    samples: int = 0  # trained on so far, in all epochs
    seconds: float = 0.0  # that the worker was busy with the chunk


def train_chunk(chunk: Chunk) -> TrialResult:
    """Train a chunk on the worker's device.

    Faults of the training go into the record; faults of the worker are raised.
    """
    from distributed import get_worker

    begin = time.perf_counter()
    try:
        worker = get_worker()
    except ValueError:  # this process is none
        worker = None
    with TemporaryDirectory(prefix="bttlab-trial-", dir=worker and worker.local_directory) as name:
        folder = Path(name) / "run"
        folder.mkdir()
        for file, data in chunk.files.items():
            (folder / file).write_bytes(data)
        store = CheckpointStore(folder)
        checkpoint = store.load()[0] if LATEST in chunk.files else None
        settings = chunk.settings
        model = model_of_run(folder, settings.config, trust=True, seed=settings.seed)  # who sends a chunk may run code
        module = None if model is settings.config else model
        run = Run(folder, settings, chunk.corpus, store, checkpoint, module=module)
        with opened_device(settings, model) as opened:
            enough = _enough(worker, begin + chunk.seconds)
            try:
                run.train(opened.trainer, opened.device, NoProgress(), enough=enough, provenance=opened.provenance)
            except BttlabError:
                pass  # a diverged run: its record says so
        record = read_run(folder)
        files = {file: (folder / file).read_bytes() for file in FILES if (folder / file).exists()}
        return TrialResult(record, files, run.count, time.perf_counter() - begin)


def estimate_trial(configuration: Mapping[str, Any], corpus: Corpus) -> TrialResult:
    """Estimate a configuration on the U50; an epoch is the corpus's training split."""
    from bttlab.card.constants import MODEL_VERSION
    from bttlab.estimate.card import estimate
    from bttlab.runs.keep import card_figures
    from bttlab.runs.provenance import git_state, versions

    begin = time.perf_counter()
    model, whole = estimated_model(configuration)
    estimated = estimate(model, epoch_lengths(corpus, model), whole["optimizer"], whole["flow"], whole["clock_mhz"])
    record = RunRecord("estimate", "", dict(configuration), f"a model of the U50 ({MODEL_VERSION})")
    record.figures, record.versions, record.git = card_figures(estimated), versions(), git_state()
    record.end(COMPLETE)
    return TrialResult(record, {}, 0, time.perf_counter() - begin)


@contextlib.contextmanager
def opened_device(settings: RunSettings, model: "ModelConfig | ModuleModel") -> Iterator[OpenedTrainer]:
    """Open the device of a trial on this worker; the context holds a card's lock.

    Raises
    ------
    bttlab.card.CardBusyError
        If another process holds the card all the while.
    """
    # The process keeps the program for the trial's next chunk.
    open_ = partial(open_trainer, model, flow=settings.flow, overlay=settings.overlay)
    if settings.device == CARD:
        import pynq

        from bttlab.card import release_card

        try:
            yield _open_card(open_)
        finally:  # also of a card that did not take the overlay
            for number in cards():
                release_card(pynq.Device.devices[number])
    else:
        yield open_(settings.device)


def cards() -> list[int]:
    """Return the numbers of the real cards here, in `pynq.Device.devices`."""
    import pynq

    from bttlab.card import EmulatedU50

    return [number for number, card in enumerate(pynq.Device.devices) if not isinstance(card, EmulatedU50)]


def _open_card(open_: Callable[..., OpenedTrainer]) -> OpenedTrainer:
    """Open a free card, or wait for this worker's own."""
    from bttlab.card import CardBusyError

    first, *others = _own_cards()
    for number in (first, *others):
        with contextlib.suppress(CardBusyError):
            return open_(str(number))
    return open_(str(first), wait=CARD_WAIT_SECONDS)


def _own_cards() -> list[int]:
    """Return the cards here, this worker's own first: local workers and cards are numbered alike."""
    from distributed import get_worker

    attached, name = cards(), get_worker().name
    if not attached:
        raise BttlabError(f"this worker offers the resource {CARD}, but PYNQ finds no card on its machine")
    own = name % len(attached) if isinstance(name, int) else 0
    return attached[own:] + attached[:own]


def _enough(worker: "Worker | None", deadline: float) -> Callable[[], bool]:
    """Return a function that tells whether the chunk's time is up or the worker's task is cancelled."""
    tasks, key = (worker.state.tasks, worker.get_current_task()) if worker else ({}, None)

    def enough() -> bool:
        cancelled = key in tasks and tasks[key].state == "cancelled"
        return cancelled or time.perf_counter() > deadline

    return enough


def identity() -> dict[str, str]:
    """Return the versions and a digest of the sources of this process; imports what a trial needs first."""
    import seqeval.metrics  # noqa: F401

    from bttlab.runs.provenance import versions

    package, digest = Path(bttlab.__file__).parent, hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return versions() | {"sources of bttlab": digest.hexdigest()[:12]}
