"""A training run: epochs over a corpus, with scores and a checkpoint after each. A continued run has the same bits."""

import contextlib
import importlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from bttlab.data import (
    Augmenter,
    Corpus,
    CorpusError,
    Samples,
    Vocabulary,
    encode,
    encoding_report,
    epoch_order,
    load_corpus,
)
from bttlab.data.corpus import SPLIT_NAMES
from bttlab.model import FAULTS, ModelConfig, ModuleConfig, NumericalFault, Trainer, initial_parameters
from bttlab.model.loop import chunks, train_pieces
from bttlab.runs.checkpoint import Checkpoint, CheckpointStore, tensors_digest
from bttlab.runs.curves import read_metrics, stretches
from bttlab.runs.evaluation import counted, describe, evaluate
from bttlab.runs.files import resume_command, run_lock
from bttlab.runs.keep import OnRecord, previous_record, record_run
from bttlab.runs.metrics_log import MetricsLog
from bttlab.runs.module import MODULE_FILE, is_copy, keep_module, model_of_run
from bttlab.runs.progress import ProgressBar
from bttlab.runs.record import RUN_FILE, STOPPED
from bttlab.runs.settings import PLAIN_INPUT, CorpusRecord, RunError, RunSettings
from bttlab.runs.stop import StopRequested, StopSignals
from bttlab.util.files import is_draft, sync_folder
from bttlab.util.locks import LOCK_FILE
from bttlab.util.quantities import measured

if TYPE_CHECKING:
    from bttlab.compiler.module import ModuleModel


class DivergedRun(RunError):
    """Raised if a loss, gradient or update is not finite.

    Attributes
    ----------
    fault : NumericalFault
        Its sample counts from the beginning of the epoch.
    """

    fault: NumericalFault


class Callback:
    """Callbacks of a training run, called in its thread. The base class does nothing.

    Attributes
    ----------
    ends : sequence of int
        Sample counts at which to score the dev split, ascending; the last ends the run. If empty, the run scores dev
        after each epoch and test at the end.
    scored : int, optional
        Utterances of the dev split to score; by default all.
    """

    ends: Sequence[int] = ()
    scored: int | None = None

    def before(self, count: int) -> None:
        """Called before the next samples, after `count` of them; it may wait, or raise an exception to end the run."""

    def next_rate(self, learning_rate: float) -> float:
        """Return the learning rate of the next samples."""
        return learning_rate

    def trained(self, samples: Samples, losses: np.ndarray, seconds: float) -> None:
        """Called with the samples just trained on, their losses, and the time."""

    def evaluation_begins(self, count: int) -> None:
        """Called after `count` samples, before the dev split is scored."""

    def evaluated(self, count: int, scores: dict[str, Any]) -> None:
        """Called after `count` samples with the dev split's scores from `bttlab.runs.evaluation.evaluate`."""


NO_CALLBACK = Callback()


@dataclass(frozen=True)
class RunResult:
    """Result of `Run.train`.

    Attributes
    ----------
    signal : int or None
        The signal that stopped it, if one did.
    position : int
        Samples of the current epoch so far.
    epoch : dict or None
        The line of metrics.jsonl for the last finished epoch.
    test : dict or None
        Scores on the test split, of a complete run.
    parameters_sha256 : str
        `tensors_digest` of the parameters.
    """

    signal: int | None
    epochs_done: int
    position: int
    epoch: dict[str, Any] | None
    test: dict[str, Any] | None
    parameters_sha256: str


@dataclass(frozen=True)
class _Session:
    """Arguments of one call of `Run.train`."""

    trainer: Trainer
    device: str
    progress: ProgressBar
    stop: StopSignals
    enough: Callable[[], bool]
    callback: Callback


class Run:
    """A run and its folder: checkpoint.safetensors, the checkpoint before it, metrics.jsonl, and run.json.

    Use `start_run` or `resume_run` to get one.

    Parameters
    ----------
    checkpoint : Checkpoint, optional
        State to continue from.
    samples : mapping of str to Samples, optional
        Encoded splits; by default the run encodes all three.
    module : ModuleModel, optional
        The module that the settings' `ModuleConfig` is of.

    Attributes
    ----------
    model : ModelConfig or ModuleModel
        What a trainer is opened for.
    notes : list of str
        Notes for the user, before training starts.
    trained_on : str
        Device of the checkpoint, in words; empty for a new run.

    Raises
    ------
    bttlab.data.CorpusError
        If the corpus does not fit the model.
    """

    def __init__(
        self,
        folder: Path,
        settings: RunSettings,
        corpus: Corpus,
        store: CheckpointStore,
        checkpoint: Checkpoint | None = None,
        samples: Mapping[str, Samples] | None = None,
        module: "ModuleModel | None" = None,
    ):
        self.model = module or settings.config
        self.folder, self.settings, self.corpus = folder, settings, corpus
        self.record = (
            checkpoint.corpus if checkpoint else CorpusRecord.of(corpus, settings.config, settings.word_classes)
        )
        vocabulary = Vocabulary.from_list(self.record.vocabulary)
        self.samples, self.notes = dict(samples or {}), []
        for name in SPLIT_NAMES if samples is None else ():
            split = corpus.split(name)
            self.samples[name] = encode(split, vocabulary, corpus, settings.config)
            self.notes.append(f"{corpus.name} {name}: {encoding_report(split, vocabulary, corpus, settings.config)}")
        self._varied = lambda indices, seed, epoch: self.samples["train"][indices]
        if settings.augmentation != PLAIN_INPUT:
            self._varied = Augmenter(settings.augmentation, corpus, vocabulary, settings.config).samples
        self._store, self._log = store, MetricsLog(folder)
        self._checkpoint = checkpoint
        self.trained_on = checkpoint.device if checkpoint else ""
        self._epochs_done = checkpoint.epochs_done if checkpoint else 0
        self._losses = checkpoint.losses if checkpoint else np.zeros(0, np.float32)  # of the epoch under way
        self._seconds = checkpoint.seconds if checkpoint else 0.0
        self._epoch_size = len(epoch_order(len(corpus.train), settings.seed, 0)[: settings.samples])
        self._line = 0, 0.0  # where in the epoch the next line of metrics.jsonl begins, in samples and seconds
        self._begun = False

    @property
    def count(self) -> int:
        """Number of samples trained on."""
        return self._epochs_done * self._epoch_size + len(self._losses)

    def finished(self) -> RunResult | None:
        """Return how the run ended if all its epochs are trained and tested; None if something is left to do."""
        if self._checkpoint is None or self._epochs_done < self.settings.epochs:
            return None
        lines = read_metrics(self.folder)
        epochs = [line for line in lines if line.get("event") == "epoch"]
        if not epochs or lines[-1].get("event") != "test" or lines[-1].get("epochs") != self._epochs_done:
            return None
        digest = tensors_digest(self._checkpoint.parameters)
        return RunResult(None, self._epochs_done, 0, epochs[-1], lines[-1].get("test"), digest)

    def train(
        self,
        trainer: Trainer,
        device: str,
        progress: ProgressBar | None = None,
        on_record: OnRecord | None = None,
        enough: Callable[[], bool] = lambda: False,
        provenance: Mapping[str, str] = MappingProxyType({}),
        callback: Callback = NO_CALLBACK,
    ) -> RunResult:
        """Train up to the settings' number of epochs, then score the test split. After a fault it can be called again.

        SIGINT and SIGTERM stop it within about a quarter second, between two samples, and save the position.

        Parameters
        ----------
        trainer : Trainer
            For the settings' model; its parameters are replaced.
        device : str
            Description of the device.
        on_record : callable, optional
            Called with the run's record before run.json is written; it may add to the record. The run is
            then put into the user's index, too.
        enough : callable, optional
            Called after every few samples; True stops the run, as a signal does.
        provenance : mapping of str to str
            `OpenedTrainer.provenance`, for run.json; a run that continues on another overlay or program says so.

        Raises
        ------
        DivergedRun
            If a loss, gradient or update is not finite; parameters and position are saved as before that sample.
        RunError, CheckpointError
            If the folder is another run's, or cannot be written.
        """
        check_model(trainer, self.settings.config)
        made = self._checkpoint is None and self._make_folder()
        with StopSignals() as stop, run_lock(self.folder):
            if self._checkpoint is None:
                check_free(self.folder, self.model)  # again, now that no other process can write there
            else:
                self._store.check_unchanged()
            if (finished := self.finished()) and not callback.ends:
                trainer.load_parameters(self._checkpoint.parameters, self._checkpoint.optimizer_state)
                return finished
            session = _Session(trainer, device, progress or ProgressBar(), stop, enough, callback)
            if threading.current_thread() is threading.main_thread():
                importlib.import_module("seqeval.metrics")  # slow: not while a signal's stop is waited for
            try:
                epoch = self._begin(session, provenance)
            except BaseException:
                if made and self._checkpoint is None:  # no half of a run stays
                    self._remove_folder()
                raise
            with record_run(self.folder, self.settings, self.record, device, on_record, provenance) as record:
                result = self._train_epochs(session, epoch)
                if not (result.test or (callback.ends and self.count == callback.ends[-1])):
                    record.status = STOPPED
                return result

    def _train_epochs(self, session: _Session, epoch: dict[str, Any] | None) -> RunResult:
        """Train the remaining epochs, then test; `epoch` is the last epoch's record."""
        test, stop, ends = None, session.stop, session.callback.ends
        try:
            while self._epochs_done < self.settings.epochs and self.count not in ends[-1:]:
                epoch = self._train_part(session)
            if not ends:
                test = self._evaluate(session, "test")
                self._log.append({"event": "test", "epochs": self._epochs_done, "test": test, "device": session.device})
        except StopRequested:
            self._write_rest(session)
            self._save(session)
            session.progress.note(
                f"stopped{f' by {stop.received.name}' if stop.received else ''} after "
                f"{counted(self._epochs_done, 'epoch')} and {counted(len(self._losses), 'sample')}, saved; "
                f"continue with: {resume_command(self.folder)}"
            )
        digest = tensors_digest(session.trainer.store_parameters())
        signal = None if test or stop.received is None else int(stop.received)
        return RunResult(signal, self._epochs_done, len(self._losses), epoch, test, digest)

    def _make_folder(self) -> bool:
        """Make the run's folder; return whether it is new."""
        try:
            if self.folder.exists():
                return False
            self.folder.mkdir(parents=True, exist_ok=True)
            sync_folder(self.folder.parent)
            return True
        except OSError as error:
            raise RunError(f"{self.folder} cannot be made ({error.strerror}); choose another --out") from None

    def _remove_folder(self) -> None:
        for path in self.folder.iterdir():
            if is_draft(path) or path.name in (LOCK_FILE, MODULE_FILE):
                path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # it holds more than we put there
            self.folder.rmdir()

    def _begin(self, session: _Session, provenance: Mapping[str, str]) -> dict[str, Any] | None:
        """Load the trainer, remove drafts, and return the last epoch's record."""
        for path in self.folder.iterdir():
            if is_draft(path):
                path.unlink(missing_ok=True)
        records = [] if self._begun else self._log.rewind(self._epochs_done)
        self._begun = True
        if self._checkpoint is None:
            if isinstance(self.model, ModelConfig):
                parameters = initial_parameters(self.model, self.settings.seed)
            else:
                parameters = self.model.parameters()
                keep_module(self.folder, self.model)
            session.trainer.load_parameters(parameters)
            self._save(session)
        else:
            session.trainer.load_parameters(self._checkpoint.parameters, self._checkpoint.optimizer_state)
            before = self._checkpoint.device if session.device != self._checkpoint.device else self._other(provenance)
            if before:
                session.progress.note(f"the run so far was on {before}: an unbroken run may differ in its last bits")
        return records[-1] if records else None

    def _other(self, provenance: Mapping[str, str]) -> str:
        """Return words for the overlay or program of run.json if the device runs another one."""
        before = previous_record(self.folder)
        for what in ("overlay", "program"):
            recorded = before and before.configuration.get(f"{what}.sha256")
            if recorded and recorded != provenance.get(f"{what}.sha256"):
                return f"another {what} (SHA-256 {str(recorded)[:12]}…)"
        return ""

    def _train_part(self, session: _Session) -> dict[str, Any]:
        """Train to the end of the epoch, or to the callback's next evaluation; return the metrics line."""
        progress, callback = session.progress, session.callback
        number, seed = self._epochs_done, self.settings.seed
        order = epoch_order(len(self.corpus.train), seed, number)[: self.settings.samples]
        title, before = f"epoch {number + 1}/{self.settings.epochs}", number * len(order)
        first, last = len(self._losses), min([len(order), *(end - before for end in callback.ends if end > self.count)])

        def may_go_on() -> bool:
            session.stop.check()
            if first < len(self._losses) < last and session.enough():
                raise StopRequested
            callback.before(self.count)
            return True

        def step(part: slice) -> np.ndarray:
            peak = callback.next_rate(self.settings.learning_rate)
            if peak != self.settings.learning_rate:
                self.settings = replace(self.settings, learning_rate=peak)
            settings, steps = self.settings, before + np.arange(part.start, part.stop)
            rates = settings.schedule.rates(peak, steps, settings.epochs * len(order))
            samples = self._varied(order[part], seed, number)
            return session.trainer.train(samples, settings.optimizer, rates, settings.label_smoothing)

        def trained(part: slice, losses: np.ndarray, seconds: float) -> None:
            self._seconds += seconds
            self._losses = np.concatenate([self._losses, losses])
            callback.trained(self.samples["train"][order[part][: len(losses)]], losses, seconds)
            progress.advance(losses)

        progress.begin(title, len(order), first)
        try:
            train_pieces(chunks(first, last), step, trained, may_go_on)
        except NumericalFault as fault:
            self._write_rest(session)
            if len(self._losses) > len(self._checkpoint.losses):  # else it would push out the one before
                self._save(session)
            raise self._diverged(order, fault) from None
        finally:
            progress.end()
        scores = None
        if not callback.ends or before + last in callback.ends:
            callback.evaluation_begins(before + last)
            scores = self._evaluate(session, "dev", callback.scored)
            callback.evaluated(before + last, scores)
        # The line comes first: after a crash in between, the epoch is trained again and its line replaced.
        record = self._write_line(session.device, scores, None if callback.ends else number + 1)
        if last == len(order):
            self._epochs_done, self._losses, self._seconds, self._line = number + 1, self._losses[:0], 0.0, (0, 0.0)
        self._save(session)
        rate = record["samples_per_second"]["value"]
        dev = f"; dev {describe(scores)}" if scores else ""
        progress.note(f"{title}: mean loss {record['mean_loss']:.3f}, {rate:.1f} samples/s{dev}")
        return record

    def _write_rest(self, session: _Session) -> None:
        """Write the metrics of a part that a stop or fault cut short, if the callback sets the evaluations."""
        if session.callback.ends and len(self._losses) > self._line[0]:
            self._write_line(session.device, None)

    def _write_line(self, device: str, scores: dict[str, Any] | None, epoch: int | None = None) -> dict[str, Any]:
        """Write and return the metrics since the last line."""
        (first, seconds), how = self._line, f"time.perf_counter on this host, around training on {device}"
        losses, seconds = self._losses[first:], self._seconds - seconds
        record = {
            "event": "stretch" if epoch is None else "epoch",
            **({} if epoch is None else {"epoch": epoch}),
            "samples": len(losses),
            "mean_loss": float(np.mean(losses, dtype=np.float64)),
            "losses": stretches(losses),
            **({} if scores is None else {"dev": scores}),
            "optimizer": self.settings.optimizer.name,
            "learning_rate": self.settings.learning_rate,
            "seconds": measured(seconds, "s", how),
            "samples_per_second": measured(len(losses) / seconds, "1/s", how),
            "device": device,
        }
        self._log.append(record)
        self._line = len(self._losses), self._seconds
        return record

    def _evaluate(self, session: _Session, split: str, most: int | None = None) -> dict[str, Any]:
        samples, decode = self.samples[split][:most], self.settings.decode_tags
        return evaluate(session.trainer, samples, self.corpus, split, session.progress, session.stop, decode)

    def _save(self, session: _Session) -> None:
        checkpoint = Checkpoint(
            self.settings,
            self.record,
            session.device,
            self._epochs_done,
            self._losses,
            self._seconds,
            session.trainer.store_parameters(),
            session.trainer.store_optimizer_state(),
        )
        self._store.save(checkpoint)
        self._checkpoint = checkpoint

    def _diverged(self, order: np.ndarray, fault: NumericalFault) -> DivergedRun:
        position = len(self._losses)
        sample = f"sample {position} (utterance {order[position]} of {self.corpus.name}'s train split)"
        error = DivergedRun(
            f"epoch {self._epochs_done + 1}: {FAULTS[fault.fault].format(sample=sample)}, at learning rate "
            f"{fault.learning_rate:g}; the parameters as before it are saved; go on with: "
            f"{resume_command(self.folder)} --lr LOWER, or, if they have grown too far, start again with a lower one"
        )
        error.fault = fault
        return error


def start_run(
    folder: Path,
    settings: RunSettings,
    corpus: Corpus,
    samples: Mapping[str, Samples] | None = None,
    module: "ModuleModel | None" = None,
) -> Run:
    """Prepare a new run; nothing is written before it trains. Parameters are those of `Run`.

    Raises
    ------
    RunError
        If the folder is in use.
    bttlab.data.CorpusError
        If the corpus does not fit the model.
    """
    folder = Path(folder)
    check_free(folder, module)
    if isinstance(settings.config, ModuleConfig):
        check_labels(corpus, settings.config)
    return Run(folder, settings, corpus, CheckpointStore(folder), samples=samples, module=module)


def check_labels(corpus: Corpus, config: ModuleConfig) -> None:
    """Raise CorpusError if a corpus has none of the labels that a module gives."""
    intents, tags = set(corpus.train.intents), {tag for tags in corpus.train.slots for tag in tags}
    for task, labels, what in (("classification", intents, "intent"), ("tagging", tags, "tag")):
        if task in config.tasks and len(labels) < 2:
            raise CorpusError(
                f"{config.title} gives a label for each {'sample' if what == 'intent' else 'token'}, and all of "
                f"{corpus.folder} have the {what} {', '.join(labels)}; use a corpus with {what}s, or another module"
            )


def resume_run(folder: Path, changes: Mapping[str, Any] | None = None, trust: bool = False) -> Run:
    """Prepare to continue a run from its checkpoint.

    Parameters
    ----------
    changes : mapping, optional
        As `RunSettings.changed` takes them.
    trust : bool
        As for `bttlab.runs.module.model_of_run`.

    Raises
    ------
    CheckpointError
        If there is no sound checkpoint.
    RunError
        If the changes make another run of it, or the corpus is not the one it was started on.
    bttlab.data.CorpusError
        If the corpus cannot be read.
    """
    folder = Path(folder)
    store = CheckpointStore(folder)
    checkpoint, warning = store.load()
    settings = checkpoint.settings.changed(changes or {})
    if settings.epochs < checkpoint.epochs_done:
        raise RunError(
            f"--epochs {settings.epochs}: {checkpoint.epochs_done} are done already; give at least that many"
        )
    corpus = load_corpus(settings.data, settings.unknown_labels)
    if not checkpoint.corpus.is_of(corpus):
        raise RunError(
            f"{corpus.folder} is not the corpus {checkpoint.corpus.name} that the run in {folder} was started on; "
            "give its place with --data, or start another run"
        )
    model = model_of_run(folder, settings.config, trust)
    run = Run(folder, settings, corpus, store, checkpoint, module=None if model is settings.config else model)
    if warning:
        run.notes.insert(0, warning)
    return run


def check_model(trainer: Trainer, config: ModelConfig) -> None:
    """Raise RunError unless a trainer has this model."""
    own, wanted = trainer.config.to_dict(), config.to_dict()
    names = [name for name in own | wanted if own.get(name) != wanted.get(name)]
    if names:
        differences = "; ".join(f"{name} {own.get(name, 'none')}, not {wanted.get(name, 'none')}" for name in names)
        raise RunError(f"the trainer is for another model than the run's ({differences}); open one for the run's")


def check_free(folder: Path, model: "ModelConfig | ModuleModel | None" = None) -> None:
    """Raise RunError unless the folder is missing or empty, or has what a crash before the first checkpoint leaves."""
    try:
        contents = [
            path
            for path in folder.iterdir()
            if not (is_draft(path) or path.name in (LOCK_FILE, RUN_FILE) or is_copy(path, model))
        ]
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunError(f"{folder} cannot be used ({error.strerror}); choose another --out") from None
    if contents:
        raise RunError(
            f"{folder} exists and is not empty; if it holds a run, continue that with: {resume_command(folder)}; else "
            "choose another --out"
        )
