"""A training run: epochs over a corpus, scores and a checkpoint after each, stopped and continued without a trace."""

import contextlib
import importlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from bttlab.data import Augmenter, Corpus, Samples, Vocabulary, encode, encoding_report, epoch_order, load_corpus
from bttlab.data.corpus import SPLIT_NAMES
from bttlab.experiments.curves import stretches
from bttlab.experiments.keep import OnRecord, continued, kept
from bttlab.experiments.record import RUN_FILE, STOPPED
from bttlab.figures import measured
from bttlab.files import is_draft, sync_folder
from bttlab.model import FAULTS, ModelConfig, NumericalFault, Trainer, initial_parameters
from bttlab.model.loop import chunks, train_pieces
from bttlab.train.checkpoint import Checkpoint, CheckpointError, CheckpointStore, tensors_digest
from bttlab.train.evaluation import counted, describe, evaluate
from bttlab.train.files import held, is_lock, resume_command
from bttlab.train.metrics_log import MetricsLog
from bttlab.train.progress import ProgressBar
from bttlab.train.settings import PLAIN_INPUT, CorpusRecord, RunError, RunSettings
from bttlab.train.stop import StopRequested, StopSignals


class DivergedRun(RunError):
    """Numbers that are not finite ended the run.

    Attributes
    ----------
    fault : NumericalFault
        Its sample is that of the epoch under way.
    """

    fault: NumericalFault


class Watcher:
    """Who a run asks and tells while it goes on, in its thread; here nobody.

    Attributes
    ----------
    ends : sequence of int
        Samples trained on at which the dev split is scored, ascending; the last ends the run. None: it is scored after
        each epoch, and the test split at the end.
    scored : int, optional
        Utterances of the dev split that are scored; by default all.
    """

    ends: Sequence[int] = ()
    scored: int | None = None

    def before(self, count: int) -> None:
        """Wait, or raise what ends the run, before the next of `count` samples trained on."""

    def next_rate(self, learning_rate: float) -> float:
        """Return the learning rate of the next samples in place of the run's."""
        return learning_rate

    def trained(self, samples: Samples, losses: np.ndarray, seconds: float) -> None:
        """Hear of the samples just trained on, their losses, and the seconds that it took."""

    def evaluated(self, count: int, scores: dict[str, Any]) -> None:
        """Hear the dev split's scores, as of `bttlab.train.evaluation.evaluate`, after `count` samples."""


NOBODY = Watcher()


@dataclass(frozen=True)
class RunResult:
    """How a run ended.

    Attributes
    ----------
    signal : int or None
        The signal that stopped it, if one did.
    epochs_done : int
    position : int
        Samples of the epoch under way that are trained on.
    epoch : dict or None
        The line of metrics.jsonl on the last finished epoch.
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
    """What a run trains with from its start, or from where it goes on, to its end or stop: the arguments of `train`."""

    trainer: Trainer
    device: str
    progress: ProgressBar
    stop: StopSignals
    enough: Callable[[], bool]
    watcher: Watcher


class Run:
    """A run and its folder: checkpoint.safetensors, the checkpoint before it, metrics.jsonl, and run.json.

    Use `start_run` or `resume_run` to get one.

    Parameters
    ----------
    folder : path
    settings : RunSettings
    corpus : Corpus
    store : CheckpointStore
    checkpoint : Checkpoint, optional
        Where to go on.
    samples : mapping of str to Samples, optional
        Splits that are encoded already, those that the run will need; by default it encodes all.

    Attributes
    ----------
    notes : list of str
        What the user should know before training starts.

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
    ):
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
        self._epochs_done = checkpoint.epochs_done if checkpoint else 0
        self._losses = checkpoint.losses if checkpoint else np.zeros(0, np.float32)  # of the epoch under way
        self._seconds = checkpoint.seconds if checkpoint else 0.0
        self._epoch_size = len(epoch_order(len(corpus.train), settings.seed, 0)[: settings.samples])
        self._line = 0, 0.0  # where in the epoch the next line of metrics.jsonl begins, in samples and seconds
        self._begun = False

    @property
    def count(self) -> int:
        """Samples trained on."""
        return self._epochs_done * self._epoch_size + len(self._losses)

    def train(
        self,
        trainer: Trainer,
        device: str,
        progress: ProgressBar | None = None,
        on_record: OnRecord | None = None,
        enough: Callable[[], bool] = lambda: False,
        provenance: Mapping[str, str] = MappingProxyType({}),
        watcher: Watcher = NOBODY,
    ) -> RunResult:
        """Train up to the number of epochs in the settings, then score the test split; after a fault, go on.

        SIGINT and SIGTERM stop it within about a quarter second, at a sample boundary, and the position is saved.

        Parameters
        ----------
        trainer : Trainer
            For the settings' model; its parameters are replaced.
        device : str
            What it trains on, in words.
        progress : ProgressBar, optional
        on_record : callable, optional
            Gets the run's record and its folder whenever run.json is about to be written.
        enough : callable, optional
            Asked after every few samples whether to stop before the next ones, as a signal does.
        provenance : mapping of str to str
            What the device runs, as `bttlab.train.devices.OpenedTrainer` has it; it goes into run.json, and a run that
            continues on something else says so.
        watcher : Watcher, optional

        Raises
        ------
        DivergedRun
            If a loss, gradient or update is not finite; parameters and position are saved as before that sample.
        RunError, CheckpointError
            If the folder is another run's, or cannot be written.
        """
        check_model(trainer, self.settings.config)
        made = self._make_folder()
        with StopSignals() as stop, held(self.folder):
            session = _Session(trainer, device, progress or ProgressBar(), stop, enough, watcher)
            if threading.current_thread() is threading.main_thread():
                importlib.import_module("seqeval.metrics")  # slow: not while a signal's stop is waited for
            try:
                epoch = self._begin(session, provenance)
            except BaseException:
                if made and self._checkpoint is None:  # no half of a run stays
                    self._remove_folder()
                raise
            with kept(self.folder, self.settings, self.record, device, on_record, provenance) as record:
                try:
                    result = self._train_epochs(session, epoch)
                except DivergedRun:
                    raise
                except (RunError, CheckpointError):
                    if self.folder.is_dir():
                        raise
                    raise self._saved_beside(session) from None
                if not (result.test or (watcher.ends and self.count == watcher.ends[-1])):
                    record.status = STOPPED
                return result

    def _train_epochs(self, session: _Session, epoch: dict[str, Any] | None) -> RunResult:
        """Train what remains, then test; `epoch` is the record of the last epoch so far."""
        test, stop, ends = None, session.stop, session.watcher.ends
        try:
            while self._epochs_done < self.settings.epochs and self.count not in ends[-1:]:
                epoch = self._train_stretch(session)
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
        """Make the run's folder; whether there was none."""
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
            if is_draft(path) or is_lock(path):
                path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # it holds more than we put there
            self.folder.rmdir()

    def _begin(self, session: _Session, provenance: Mapping[str, str]) -> dict[str, Any] | None:
        """Load the trainer, tidy the folder, and return the record of the last epoch."""
        if self._checkpoint is None:
            check_free(self.folder)  # again, now that nobody else can come in
        for path in self.folder.iterdir():
            if is_draft(path):
                path.unlink(missing_ok=True)
        records = [] if self._begun else self._log.rewind(self._epochs_done)
        self._begun = True
        if self._checkpoint is None:
            session.trainer.load_parameters(initial_parameters(self.settings.config, self.settings.seed))
            self._save(session)
        else:
            session.trainer.load_parameters(self._checkpoint.parameters, self._checkpoint.optimizer_state)
            before = self._checkpoint.device if session.device != self._checkpoint.device else self._other(provenance)
            if before:
                session.progress.note(f"the run so far was on {before}: an unbroken run may differ in its last bits")
        return records[-1] if records else None

    def _other(self, provenance: Mapping[str, str]) -> str:
        """The overlay or the program that run.json names and the device does not run now, in words."""
        before = continued(self.folder)
        for what in ("overlay", "program"):
            recorded = before and before.configuration.get(f"{what}.sha256")
            if recorded and recorded != provenance.get(f"{what}.sha256"):
                return f"another {what} (SHA-256 {str(recorded)[:12]}…)"
        return ""

    def _train_stretch(self, session: _Session) -> dict[str, Any]:
        """Train to the epoch's end, or to where the watcher wants scores before it; returns the line on it."""
        progress, watcher = session.progress, session.watcher
        number, seed = self._epochs_done, self.settings.seed
        order = epoch_order(len(self.corpus.train), seed, number)[: self.settings.samples]
        title, before = f"epoch {number + 1}/{self.settings.epochs}", number * len(order)
        first, last = len(self._losses), min([len(order), *(end - before for end in watcher.ends if end > self.count)])

        def may_go_on() -> bool:
            session.stop.check()
            if first < len(self._losses) < last and session.enough():
                raise StopRequested
            watcher.before(self.count)
            return True

        def step(part: slice) -> np.ndarray:
            peak = watcher.next_rate(self.settings.learning_rate)
            if peak != self.settings.learning_rate:
                self.settings = replace(self.settings, learning_rate=peak)
            settings, steps = self.settings, before + np.arange(part.start, part.stop)
            rates = settings.schedule.rates(peak, steps, settings.epochs * len(order))
            samples = self._varied(order[part], seed, number)
            return session.trainer.train(samples, settings.optimizer, rates, settings.label_smoothing)

        def trained(part: slice, losses: np.ndarray, seconds: float) -> None:
            self._seconds += seconds
            self._losses = np.concatenate([self._losses, losses])
            watcher.trained(self.samples["train"][order[part][: len(losses)]], losses, seconds)
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
        if not watcher.ends or before + last in watcher.ends:
            scores = self._evaluate(session, "dev", watcher.scored)
            watcher.evaluated(before + last, scores)
        # The line comes first: after a crash in between, the epoch is trained again and its line replaced.
        record = self._write_line(session.device, scores, None if watcher.ends else number + 1)
        if last == len(order):
            self._epochs_done, self._losses, self._seconds, self._line = number + 1, self._losses[:0], 0.0, (0, 0.0)
        self._save(session)
        rate = record["samples_per_second"]["value"]
        dev = f"; dev {describe(scores)}" if scores else ""
        progress.note(f"{title}: mean loss {record['mean_loss']:.3f}, {rate:.1f} samples/s{dev}")
        return record

    def _write_rest(self, session: _Session) -> None:
        """Write a line on a part of a stretch; the part of an epoch has none, as it is told with the rest."""
        if session.watcher.ends and len(self._losses) > self._line[0]:
            self._write_line(session.device, None)

    def _write_line(self, device: str, scores: dict[str, Any] | None, epoch: int | None = None) -> dict[str, Any]:
        """Write a line on what was trained since the last one, on an epoch if it is one; returns it."""
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
        samples, repair = self.samples[split][:most], self.settings.repair_tags
        return evaluate(session.trainer, samples, self.corpus, split, session.progress, session.stop, repair)

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

    def _saved_beside(self, session: _Session) -> RunError:
        """Save what is trained where the folder was, once that is gone; returns what there is to say."""
        gone = f"{self.folder} is gone: it was removed or moved in the middle of the training"
        beside = self.folder.with_name(f"{self.folder.name}-saved-{os.getpid()}")
        try:
            beside.mkdir()
            self._store = CheckpointStore(beside)
            self._save(session)
        except (OSError, CheckpointError) as error:
            return RunError(f"{gone}, and nothing can be saved beside it ({error}); look for where it was moved to")
        return RunError(f"{gone}; what is trained is saved beside it; go on with: {resume_command(beside)}")

    def _diverged(self, order: np.ndarray, fault: NumericalFault) -> DivergedRun:
        position = len(self._losses)
        sample = f"sample {position} (utterance {order[position]} of {self.corpus.name}'s train split)"
        error = DivergedRun(
            f"epoch {self._epochs_done + 1}: {FAULTS[fault.fault].format(sample=sample)}, at learning rate "
            f"{fault.learning_rate:g}; the parameters as before it are saved; go on with: "
            f"{resume_command(self.folder)} --lr LOWER, or, if they have grown too far, start anew with a lower one"
        )
        error.fault = fault
        return error


def start_run(folder: Path, settings: RunSettings, corpus: Corpus, samples: Mapping[str, Samples] | None = None) -> Run:
    """Prepare a new run; nothing is written before it trains. Parameters are as for `Run`.

    Raises
    ------
    RunError
        If the folder is in use.
    bttlab.data.CorpusError
        If the corpus does not fit the model.
    """
    folder = Path(folder)
    check_free(folder)
    return Run(folder, settings, corpus, CheckpointStore(folder), samples=samples)


def resume_run(folder: Path, changes: Mapping[str, Any] | None = None) -> Run:
    """Prepare to continue a run from its checkpoint.

    Parameters
    ----------
    folder : path
    changes : mapping, optional
        As `RunSettings.changed` takes them.

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
    run = Run(folder, settings, corpus, store, checkpoint)
    if warning:
        run.notes.insert(0, warning)
    return run


def check_model(trainer: Trainer, config: ModelConfig) -> None:
    """Raise RunError unless a trainer is for a model."""
    own, wanted = trainer.config.to_dict(), config.to_dict()
    names = [name for name in own | wanted if own.get(name) != wanted.get(name)]
    if names:
        differences = "; ".join(f"{name} {own.get(name, 'none')}, not {wanted.get(name, 'none')}" for name in names)
        raise RunError(f"the trainer is for another model than the run's ({differences}); open one for the run's")


def check_free(folder: Path) -> None:
    """Raise RunError unless a new run may use the folder: it is not there, or holds nothing of worth."""
    try:
        contents = [
            path for path in folder.iterdir() if not (is_draft(path) or is_lock(path)) and path.name != RUN_FILE
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
