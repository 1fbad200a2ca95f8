"""A training run: epochs over a corpus, with scores and a checkpoint after each. A continued run has the same bits."""

import contextlib
import importlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from bttlab.data import (
    Augmentation,
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
from bttlab.runs.curves import stretches
from bttlab.runs.evaluation import counted, evaluate, score_names, scores_in_words
from bttlab.runs.lock import RunLock, resume_command, run_lock
from bttlab.runs.metrics import MetricsLog, figures_of
from bttlab.runs.module import is_copy, keep_module, model_of_run, remove_module
from bttlab.runs.plan import Callback, Control, EvaluationPlan
from bttlab.runs.progress import ProgressBar
from bttlab.runs.provenance import git_state, versions
from bttlab.runs.recipe import flat
from bttlab.runs.record import COMPLETE, FAILED, LATEST, RUN_FILE, RUNNING, STOPPED, RunRecord, read_run
from bttlab.runs.settings import CorpusRecord, RunError, RunSettings
from bttlab.runs.stop import StopRequested, StopSignals
from bttlab.runs.u50 import OnRecord
from bttlab.util.errors import BttlabError
from bttlab.util.files import is_draft, sync_folder
from bttlab.util.locks import LOCK_FILE
from bttlab.util.quantities import measured

if TYPE_CHECKING:
    from bttlab.compiler.module import ModuleModel


EPOCHS, NO_CONTROL, NO_CALLBACK = EvaluationPlan(), Control(), Callback()
CHANGEABLE = ("epochs", "learning_rate", "device", "overlay", "keep", "data")  # of a run that is resumed


class DivergedRun(RunError):
    """Raised if a loss, gradient or update is not finite.

    Attributes
    ----------
    fault : NumericalFault
        Its sample counts from the beginning of the epoch.
    """

    fault: NumericalFault


@dataclass(frozen=True)
class RunResult:
    """Result of `Run.train`."""

    signal: int | None  # the signal that stopped it, if one did
    epochs_done: int
    position: int  # samples of the current epoch so far
    epoch: dict[str, Any] | None  # the line of metrics.jsonl for the last finished epoch
    test: dict[str, Any] | None  # scores on the test split, of a complete run
    parameters_sha256: str  # `tensors_digest` of the parameters


@dataclass(frozen=True)
class _Session:
    """Arguments of one call of `Run.train`, and what it holds meanwhile."""

    trainer: Trainer
    device: str
    progress: ProgressBar
    plan: EvaluationPlan
    control: Control
    callback: Callback
    stop: StopSignals
    lock: RunLock


class Run:
    """A run and its folder: checkpoint.safetensors, the checkpoint before it, metrics.jsonl, and run.json.

    Use `start_run` or `resume_run` to get one.

    Raises CorpusError if the corpus does not fit the model.

    Parameters
    ----------
    store : CheckpointStore
        That `checkpoint` was loaded from.
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
        self._augmented = lambda indices, seed, epoch: self.samples["train"][indices]
        if settings.augmentation != Augmentation():
            self._augmented = Augmenter(settings.augmentation, corpus, vocabulary, settings.config).samples
        self._store, self._log = store, MetricsLog(folder)
        self._checkpoint = checkpoint
        self.trained_on = checkpoint.device if checkpoint else ""
        self._epochs_done = checkpoint.epochs_done if checkpoint else 0
        self._losses = checkpoint.losses if checkpoint else np.zeros(0, np.float32)  # of the current epoch
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
        lines = self._log.lines
        if self._checkpoint is None or self._epochs_done < self.settings.epochs or not lines:
            return None
        epochs = [line for line in lines if line["event"] == "epoch"]
        if not epochs or lines[-1]["event"] != "test" or lines[-1].get("epochs") != self._epochs_done:
            return None
        digest = tensors_digest(self._checkpoint.parameters)
        return RunResult(None, self._epochs_done, 0, epochs[-1], lines[-1].get("test"), digest)

    def train(
        self,
        trainer: Trainer,
        device: str,
        progress: ProgressBar | None = None,
        on_record: OnRecord = lambda record: None,
        provenance: Mapping[str, str] = MappingProxyType({}),
        plan: EvaluationPlan = EPOCHS,
        control: Control = NO_CONTROL,
        callback: Callback = NO_CALLBACK,
    ) -> RunResult:
        """Train up to the settings' number of epochs, then score the test split. After a fault it can be called again.

        SIGINT, SIGTERM and SIGHUP stop it within about a quarter second, between two samples, and save the position.

        Raises DivergedRun if a loss, gradient or update is not finite; parameters and position are saved as before that
        sample; RunError or CheckpointError if the folder is another run's, or cannot be written.

        Parameters
        ----------
        trainer : Trainer
            For the settings' model; its parameters are replaced.
        device : str
            Description of the device.
        on_record : callable
            Called with the run's record before run.json is written; it may add to the record.
        provenance : mapping of str to str
            `OpenedTrainer.provenance`, for run.json; a run that continues on another overlay or program says so.
        plan : EvaluationPlan
            When to score and to end.
        """
        check_model(trainer, self.settings.config)
        is_new = self._checkpoint is None and self._make_folder()
        with StopSignals() as stop, run_lock(self.folder) as lock:
            if self._checkpoint is None:
                check_free(self.folder, self.model)  # again, now that no other process can write there
            else:
                self._store.check_unchanged()
            if self._checkpoint is not None and (finished := self.finished()) and plan.scores_test:
                trainer.load_parameters(self._checkpoint.parameters, self._checkpoint.optimizer_state)
                return finished
            session = _Session(trainer, device, progress or ProgressBar(), plan, control, callback, stop, lock)
            if threading.current_thread() is threading.main_thread():
                importlib.import_module("seqeval.metrics")  # slow: not while a signal's stop is waited for
            before = None
            with contextlib.suppress(BttlabError):  # a new run has none
                before = read_run(self.folder)
            try:
                self._begin(session, provenance, before)
            except BaseException:
                if is_new and self._checkpoint is None:  # no half of a run stays
                    self._remove_folder()
                raise
            with self._recorded(session, before, on_record, provenance) as record:
                result = self._train_epochs(session)
                if not (result.test or plan.is_over(self.count)):
                    record.status = STOPPED
                return result

    def _train_epochs(self, session: _Session) -> RunResult:
        plan, epoch, test = session.plan, None, None
        for line in self._log.lines:
            epoch = line if line["event"] == plan.event else epoch
        try:
            while self._epochs_done < self.settings.epochs and not plan.is_over(self.count):
                epoch = self._train_part(session)
            if plan.scores_test:
                test = self._evaluate(session, "test")
                line = {"event": "test", "epochs": self._epochs_done, "test": test, "device": session.device}
                self._log.append(line, session.lock)
        except StopRequested:
            self._write_rest(session)
            self._save(session)
            signal = session.stop.received
            session.progress.note(
                f"stopped{f' by {signal.name}' if signal else ''} after {counted(self._epochs_done, 'epoch')} and "
                f"{counted(len(self._losses), 'sample')}, saved; continue with: {resume_command(self.folder)}"
            )
        digest = tensors_digest(session.trainer.store_parameters())
        signal = None if test or session.stop.received is None else int(session.stop.received)
        return RunResult(signal, self._epochs_done, len(self._losses), epoch, test, digest)

    # --- the folder

    def _make_folder(self) -> bool:
        """Make the run's folder, for this user alone; return whether it is new."""
        try:
            if self.folder.exists():
                return False
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            self.folder.mkdir(0o700, exist_ok=True)
            sync_folder(self.folder.parent)
            return True
        except OSError as error:
            raise RunError(f"{self.folder} cannot be made ({error.strerror}); choose another --out") from None

    def _remove_folder(self) -> None:
        remove_module(self.folder)
        for path in self.folder.iterdir():
            if is_draft(path) or path.name == LOCK_FILE:
                path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # it holds more than we put there
            self.folder.rmdir()

    def _begin(self, session: _Session, provenance: Mapping[str, str], before: RunRecord | None) -> None:
        """Remove drafts and later lines of metrics, and load the trainer."""
        for path in self.folder.iterdir():
            if is_draft(path):
                path.unlink(missing_ok=True)
        if not self._begun:
            self._log.rewind(self._epochs_done)
        self._begun = True
        if self._checkpoint is None:
            if isinstance(self.model, ModelConfig):
                parameters = initial_parameters(self.model, self.settings.seed)
            else:
                parameters = self.model.parameters()  # pyright: ignore[reportAttributeAccessIssue]  # a ModuleModel
                keep_module(self.folder, self.model)  # pyright: ignore[reportArgumentType]
            session.trainer.load_parameters(parameters)
            self._save(session)
            return
        session.trainer.load_parameters(self._checkpoint.parameters, self._checkpoint.optimizer_state)
        other = self._checkpoint.device if session.device != self._checkpoint.device else _other(before, provenance)
        if other:
            session.progress.note(f"the run so far was on {other}: an unbroken run may differ in its last bits")

    @contextlib.contextmanager
    def _recorded(
        self, session: _Session, before: RunRecord | None, on_record: OnRecord, provenance: Mapping[str, str]
    ) -> Iterator[RunRecord]:
        """Write run.json at the beginning and the end of the context. If it cannot be written, the run goes on."""
        record = before or RunRecord(kind="training", name=self.folder.name, configuration={}, device=session.device)
        record.device, record.checkpoint = session.device, LATEST
        record.corpus = {"name": self.record.name, "sha256": self.record.sha256}
        record.versions, record.git = versions(), git_state()
        record.status, record.error, record.ended = RUNNING, "", ""

        def write() -> None:
            record.configuration = flat(self.settings) | dict(provenance)
            record.figures |= figures_of(self._log.lines, session.device)
            on_record(record)
            try:
                session.lock.check()
                record.write(self.folder)
            except OSError as error:
                session.progress.note(f"note: {self.folder / RUN_FILE} is not written ({error.strerror})")

        write()
        try:
            yield record
            record.end(COMPLETE if record.status == RUNNING else record.status)
        except BaseException as error:
            record.end(FAILED, str(error) if isinstance(error, BttlabError) else f"{type(error).__name__}: {error}")
            with contextlib.suppress(RunError):  # the folder has gone, which is what the error says
                write()
            raise
        write()

    # --- training

    def _train_part(self, session: _Session) -> dict[str, Any]:
        """Train to the plan's next stop; return the metrics line."""
        progress, plan, callback = session.progress, session.plan, session.callback
        number, seed = self._epochs_done, self.settings.seed
        order = epoch_order(len(self.corpus.train), seed, number)[: self.settings.samples]
        title, before = f"epoch {number + 1}/{self.settings.epochs}", number * len(order)
        first, last = len(self._losses), plan.next_stop(self.count, before + len(order)) - before

        def may_go_on() -> bool:
            session.stop.check()
            session.control.before(self.count)
            return True

        def step(part: slice) -> np.ndarray:
            peak = session.control.next_rate(self.settings.learning_rate)
            if peak != self.settings.learning_rate:
                self.settings = replace(self.settings, learning_rate=peak)
            settings, steps = self.settings, before + np.arange(part.start, part.stop)
            rates = settings.schedule.rates(peak, steps, settings.epochs * len(order))
            samples = self._augmented(order[part], seed, number)
            return session.trainer.train(samples, settings.optimizer, rates, settings.label_smoothing)

        def trained(part: slice, losses: np.ndarray, seconds: float) -> None:
            self._seconds += seconds
            self._losses = np.concatenate([self._losses, losses])
            callback.trained(self.samples["train"][order[part][: len(losses)]], losses, seconds)
            progress.advance(losses)

        progress.begin(title, len(order), first)
        try:
            train_pieces(chunks(first, last, self.settings.optimizer.batch_size, before), step, trained, may_go_on)
        except NumericalFault as fault:
            self._write_rest(session)
            kept = self._checkpoint
            if kept is None or len(self._losses) > len(kept.losses):  # else it would push out the one before
                self._save(session)
            raise self._diverged(order, fault) from None
        finally:
            progress.end()
        scores, is_best = None, False
        if plan.scores_dev(before + last):
            callback.evaluation_begins(before + last)
            scores = self._evaluate(session, "dev", plan.utterances)
            is_best = self.settings.keep == "best" and self._is_best(scores)
            callback.evaluated(before + last, scores)
        # The line comes first: after a crash in between, the epoch is trained again and its line replaced.
        line = self._write_line(session, scores)
        if last == len(order):
            self._epochs_done, self._losses, self._seconds, self._line = number + 1, self._losses[:0], 0.0, (0, 0.0)
        self._save(session, is_best)
        rate = line["samples_per_second"]["value"]
        dev = f"; dev {scores_in_words(scores)}" if scores else ""
        progress.note(f"{title}: mean loss {line['mean_loss']:.3f}, {rate:.1f} samples/s{dev}")
        return line

    def _is_best(self, scores: dict[str, Any]) -> bool:
        """Return whether scores of the dev split are better than all before them."""
        *_, name = score_names(self.settings.config.task)
        sign = -1 if name in ("mean_loss", "perplexity") else 1
        earlier = [line["dev"][name] for line in self._log.lines if (line.get("dev") or {}).get(name) is not None]
        return all(sign * scores[name] > sign * value for value in earlier)

    def _write_rest(self, session: _Session) -> None:
        """Write the metrics of a part that a stop or fault cut short, unless the epoch's line will have them."""
        if session.plan.event != "epoch" and len(self._losses) > self._line[0]:
            self._write_line(session, None)

    def _write_line(self, session: _Session, scores: dict[str, Any] | None) -> dict[str, Any]:
        """Write and return the metrics since the last line."""
        (first, seconds), event = self._line, session.plan.event
        how = f"time.perf_counter on this host, around training on {session.device}"
        losses, seconds = self._losses[first:], self._seconds - seconds
        line = {
            "event": event,
            **({"epoch": self._epochs_done + 1} if event == "epoch" else {}),
            "samples": len(losses),
            "mean_loss": float(np.mean(losses, dtype=np.float64)),
            "losses": stretches(losses),
            **({} if scores is None else {"dev": scores}),
            "optimizer": self.settings.optimizer.name,
            "learning_rate": self.settings.learning_rate,
            "seconds": measured(seconds, "s", how),
            "samples_per_second": measured(len(losses) / seconds, "1/s", how),
            "device": session.device,
        }
        self._log.append(line, session.lock)
        self._line = len(self._losses), self._seconds
        return line

    def _evaluate(self, session: _Session, split: str, most: int | None = None) -> dict[str, Any]:
        samples, decode = self.samples[split][:most], self.settings.decode_tags
        return evaluate(session.trainer, samples, self.corpus, split, session.progress, session.stop, decode)

    def _save(self, session: _Session, is_best: bool = False) -> None:
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
        self._store.save(checkpoint, session.lock, is_best)
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


def _other(before: RunRecord | None, provenance: Mapping[str, str]) -> str:
    """Return words for the overlay or program of the record before if the device runs another one."""
    for what in ("overlay", "program"):
        recorded = before and before.configuration.get(f"{what}.sha256")
        if recorded and recorded != provenance.get(f"{what}.sha256"):
            return f"another {what} (SHA-256 {str(recorded)[:12]}…)"
    return ""


def start_run(
    folder: Path,
    settings: RunSettings,
    corpus: Corpus,
    samples: Mapping[str, Samples] | None = None,
    module: "ModuleModel | None" = None,
) -> Run:
    """Prepare a new run; nothing is written before it trains. Parameters are those of `Run`.

    Raises RunError if the folder is in use; CorpusError if the corpus does not fit the model.
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

    Raises CheckpointError if there is no sound checkpoint; RunError if more epochs are done, or the corpus is not the
    one it was started on; CorpusError if the corpus cannot be read.

    Parameters
    ----------
    changes : mapping, optional
        Of the fields in `CHANGEABLE`; `data` is the place of the same corpus.
    trust : bool
        As for `bttlab.runs.module.model_of_run`.
    """
    folder = Path(folder)
    store = CheckpointStore(folder)
    checkpoint, warning = store.load()
    for name in changes or {}:
        if name not in CHANGEABLE:
            option = f"--{name.replace('_', '-')}"
            raise RunError(f"{option}: a run continues as it began; leave {option} out, or start another run")
    settings = replace(checkpoint.settings, **changes or {})
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
    module: Any = None if model is settings.config else model
    run = Run(folder, settings, corpus, store, checkpoint, module=module)
    if warning:
        run.notes.insert(0, warning)
    return run


def check_model(trainer: Trainer, config: ModelConfig | ModuleConfig) -> None:
    """Raise RunError unless a trainer has this model."""
    own, wanted = trainer.config.to_dict(), config.to_dict()
    names = [name for name in own | wanted if own.get(name) != wanted.get(name)]
    if names:
        differences = "; ".join(f"{name} {own.get(name, 'none')}, not {wanted.get(name, 'none')}" for name in names)
        raise RunError(f"the trainer is for another model than the run's ({differences}); open one for the run's")


def check_free(folder: Path, model: "ModelConfig | ModuleConfig | None" = None) -> None:
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
