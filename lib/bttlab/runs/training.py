"""The training of a run: epoch after epoch, with scores; it writes metrics, checkpoints and the record."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bttlab.data import Augmentation, Augmenter, Corpus, Samples, Vocabulary, encoded_split, epoch_order
from bttlab.data.corpus import SPLIT_NAMES
from bttlab.model import FAULTS, ModelConfig, NumericalFault, Trainer, initial_parameters
from bttlab.model.loop import chunks, train_pieces
from bttlab.runs.checkpoint import Checkpoint, CheckpointStore, tensors_digest
from bttlab.runs.curves import stretches
from bttlab.runs.evaluation import predict, scores_of
from bttlab.runs.folder import RunLock, remove_drafts, resume_command
from bttlab.runs.metrics import MetricsLog, figures_of
from bttlab.runs.module import keep_module
from bttlab.runs.plan import Callback, Control, EvaluationPlan
from bttlab.runs.progress import ProgressBar
from bttlab.runs.provenance import git_state, versions
from bttlab.runs.recipe import flat
from bttlab.runs.record import COMPLETE, LATEST, RUN_FILE, RUNNING, RunRecord, read_run
from bttlab.runs.scores import counted, is_better, scores_in_words
from bttlab.runs.settings import CorpusRecord, RunError, RunSettings
from bttlab.runs.stop import StopRequested, StopSignals
from bttlab.runs.u50 import OnRecord
from bttlab.util.errors import BttlabError
from bttlab.util.quantities import measured

if TYPE_CHECKING:
    from bttlab.compiler.module import ModuleModel


class DivergedRun(RunError):
    """Raised if a loss, gradient or update is not finite."""

    fault: NumericalFault  # its sample counts from the beginning of the epoch


@dataclass(frozen=True)
class RunResult:
    """Result of `Run.train`."""

    signal: int | None  # the signal that stopped it, if one did
    epochs_done: int
    position: int  # samples of the current epoch so far
    epoch: dict[str, Any] | None  # the line of metrics.jsonl for the last finished epoch
    test: dict[str, Any] | None  # scores on the test split, of a complete run
    parameters_sha256: str  # `tensors_digest` of the parameters


class RunState:
    """How far a run has come, and what it needs to go on.

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
        self.model = module or settings.config  # what a trainer is opened for
        self.folder, self.settings, self.corpus = folder, settings, corpus
        self.record = (
            checkpoint.corpus if checkpoint else CorpusRecord.of(corpus, settings.config, settings.word_classes)
        )
        vocabulary = Vocabulary.from_list(self.record.vocabulary)
        self.samples = dict(samples or {})
        self.notes: list[str] = []  # for the user, before training starts
        for name in SPLIT_NAMES if samples is None else ():
            self.samples[name], note = encoded_split(corpus, name, vocabulary, settings.config)
            self.notes.append(note)
        self.augmented = lambda indices, seed, epoch: self.samples["train"][indices]
        if settings.augmentation != Augmentation():
            self.augmented = Augmenter(settings.augmentation, corpus, vocabulary, settings.config).samples
        self.store, self.log = store, MetricsLog(folder)
        self.checkpoint = checkpoint  # the last one
        self.epochs_done = checkpoint.epochs_done if checkpoint else 0
        self.losses = checkpoint.losses if checkpoint else np.zeros(0, np.float32)  # of the current epoch
        self.seconds = checkpoint.seconds if checkpoint else 0.0
        self.line: tuple[int, float] = (
            0,
            0.0,
        )  # where in the epoch the next line of metrics.jsonl begins, in samples and seconds
        self.has_begun = False

    def order(self, epoch: int) -> np.ndarray:
        """Return the samples of an epoch, in order."""
        return epoch_order(len(self.corpus.train), self.settings.seed, epoch)[: self.settings.samples]

    @property
    def count(self) -> int:
        """Number of samples trained on."""
        return self.epochs_done * len(self.order(0)) + len(self.losses)

    def result(
        self, epoch: dict | None, test: dict | None, parameters: Mapping[str, np.ndarray], signal: int | None = None
    ) -> RunResult:
        return RunResult(signal, self.epochs_done, len(self.losses), epoch, test, tensors_digest(parameters))


@dataclass
class Training:
    """The training of a run on a device, under the lock of its folder. The run holds the position."""

    _run: RunState
    trainer: Trainer
    device: str
    progress: ProgressBar
    plan: EvaluationPlan
    control: Control
    callback: Callback
    stop: StopSignals
    lock: RunLock

    def __post_init__(self) -> None:
        self._before: RunRecord | None = None
        with contextlib.suppress(BttlabError):  # a new run has none
            self._before = read_run(self._run.folder)

    def begin(self, provenance: Mapping[str, str]) -> None:
        """Remove drafts and later lines of metrics, and load the trainer."""
        run = self._run
        remove_drafts(run.folder)
        if not run.has_begun:
            run.log.rewind(run.epochs_done)
        run.has_begun = True
        if run.checkpoint is None:
            if isinstance(run.model, ModelConfig):
                parameters = initial_parameters(run.model, run.settings.seed)
            else:
                parameters = run.model.parameters()  # pyright: ignore[reportAttributeAccessIssue]  # a ModuleModel
                keep_module(run.folder, run.model)  # pyright: ignore[reportArgumentType]
            self.trainer.load_parameters(parameters)
            self._save()
            return
        self.trainer.load_parameters(run.checkpoint.parameters, run.checkpoint.optimizer_state)
        if other := self._other_device(run.checkpoint, provenance):
            self.progress.note(f"the run so far was on {other}: an unbroken run may differ in its last bits")

    def _other_device(self, checkpoint: Checkpoint, provenance: Mapping[str, str]) -> str:
        """Return words for the device, overlay or program of before, if this one is another; else an empty string."""
        if self.device != checkpoint.device:
            return checkpoint.device
        for what in ("overlay", "program"):
            recorded = self._before and self._before.configuration.get(f"{what}.sha256")
            if recorded and recorded != provenance.get(f"{what}.sha256"):
                return f"another {what} (SHA-256 {str(recorded)[:12]}…)"
        return ""

    @contextlib.contextmanager
    def recorded(self, on_record: OnRecord, provenance: Mapping[str, str]) -> Iterator[RunRecord]:
        """Write run.json at the beginning and the end of the context. If it cannot be written, the run goes on."""
        run = self._run
        record = self._before or RunRecord("training", run.folder.name, configuration={}, device=self.device)
        record.device, record.checkpoint = self.device, LATEST
        record.corpus = {"name": run.record.name, "sha256": run.record.sha256}
        record.versions, record.git = versions(), git_state()
        record.status, record.error, record.ended = RUNNING, "", ""

        def write() -> None:
            record.configuration = flat(run.settings) | dict(provenance)
            record.figures |= figures_of(run.log.lines, self.device)
            on_record(record)
            try:
                self.lock.check()
                record.write(run.folder)
            except OSError as error:
                self.progress.note(f"note: {run.folder / RUN_FILE} is not written ({error.strerror})")

        write()
        try:
            yield record
            record.end(COMPLETE if record.status == RUNNING else record.status)
        except BaseException as error:
            record.fail(error)
            with contextlib.suppress(RunError):  # the folder has gone, which is what the error says
                write()
            raise
        write()

    def run(self) -> RunResult:
        """Train until all epochs are done, the plan is over, or the user stops it."""
        run, plan, epoch, test = self._run, self.plan, None, None
        for line in run.log.lines:
            epoch = line if line["event"] == plan.event else epoch
        try:
            while run.epochs_done < run.settings.epochs and not plan.is_over(run.count):
                epoch = self._train_part()
            if plan.scores_test:
                test = self._score("test")
                line = {"event": "test", "epochs": run.epochs_done, "test": test, "device": self.device}
                run.log.append(line, self.lock)
        except StopRequested:
            self._write_rest()
            self._save()
            signal = self.stop.received
            self.progress.note(
                f"stopped{f' by {signal.name}' if signal else ''} after {counted(run.epochs_done, 'epoch')} and "
                f"{counted(len(run.losses), 'sample')}, saved; continue with: {resume_command(run.folder)}"
            )
        signal = None if test or self.stop.received is None else int(self.stop.received)
        return run.result(epoch, test, self.trainer.store_parameters(), signal)

    def _train_part(self) -> dict[str, Any]:
        """Train to the plan's next stop; return the metrics line."""
        run, plan = self._run, self.plan
        number, seed, order = run.epochs_done, run.settings.seed, run.order(run.epochs_done)
        title, before = f"epoch {number + 1}/{run.settings.epochs}", number * len(order)
        first, last = len(run.losses), plan.next_stop(run.count, before + len(order)) - before

        def may_go_on() -> bool:
            self.stop.check()
            self.control.before(run.count)
            return True

        def step(part: slice) -> np.ndarray:
            peak = self.control.next_rate(run.settings.learning_rate)
            if peak != run.settings.learning_rate:
                run.settings = replace(run.settings, learning_rate=peak)
            settings, steps = run.settings, before + np.arange(part.start, part.stop)
            rates = settings.schedule.rates(peak, steps, settings.epochs * len(order))
            samples = run.augmented(order[part], seed, number)
            return self.trainer.train(samples, settings.optimizer, rates, settings.label_smoothing)

        def trained(part: slice, losses: np.ndarray, seconds: float) -> None:
            run.seconds += seconds
            run.losses = np.concatenate([run.losses, losses])
            self.callback.trained(run.samples["train"][order[part][: len(losses)]], losses, seconds)
            self.progress.advance(losses)

        self.progress.begin(title, len(order), first)
        try:
            train_pieces(chunks(first, last, run.settings.optimizer.batch_size, before), step, trained, may_go_on)
        except NumericalFault as fault:
            self._write_rest()
            kept = run.checkpoint
            if kept is None or len(run.losses) > len(kept.losses):  # else it would push out the one before
                self._save()
            raise self._diverged(order, fault) from None
        finally:
            self.progress.end()
        scores, is_best = None, False
        if plan.scores_dev(before + last):
            self.callback.evaluation_begins(before + last)
            scores = self._score("dev", plan.utterances)
            earlier = [line["dev"] for line in run.log.lines if line.get("dev")]
            is_best = run.settings.keep == "best" and all(is_better(scores, dev) for dev in earlier)
            self.callback.evaluated(before + last, scores)
        # The line comes first: after a crash in between, the epoch is trained again and its line replaced.
        line = self._write_line(scores)
        if last == len(order):
            run.epochs_done, run.losses, run.seconds, run.line = number + 1, run.losses[:0], 0.0, (0, 0.0)
        self._save(is_best)
        rate = line["samples_per_second"]["value"]
        dev = f"; dev {scores_in_words(scores)}" if scores else ""
        self.progress.note(f"{title}: mean loss {line['mean_loss']:.3f}, {rate:.1f} samples/s{dev}")
        return line

    def _score(self, split: str, most: int | None = None) -> dict[str, Any]:
        run, config = self._run, self.trainer.config
        samples, decode = run.samples[split][:most], run.settings.decode_tags
        found = predict(self.trainer, samples, run.corpus, decode, f"{split} split", self.progress, self.stop)
        return scores_of(found, run.corpus, split, config, len(samples))

    def _write_rest(self) -> None:
        """Write the metrics of a part that a stop or fault cut short, unless the epoch's line will have them."""
        if self.plan.event != "epoch" and len(self._run.losses) > self._run.line[0]:
            self._write_line(None)

    def _write_line(self, scores: dict[str, Any] | None) -> dict[str, Any]:
        """Write and return the metrics since the last line."""
        run, event = self._run, self.plan.event
        how = f"time.perf_counter on this host, around training on {self.device}"
        first, seconds = run.line
        losses, seconds = run.losses[first:], run.seconds - seconds
        line = {
            "event": event,
            **({"epoch": run.epochs_done + 1} if event == "epoch" else {}),
            "samples": len(losses),
            "mean_loss": float(np.mean(losses, dtype=np.float64)),
            "losses": stretches(losses),
            **({} if scores is None else {"dev": scores}),
            "optimizer": run.settings.optimizer.name,
            "learning_rate": run.settings.learning_rate,
            "seconds": measured(seconds, "s", how),
            "samples_per_second": measured(len(losses) / seconds, "1/s", how),
            "device": self.device,
        }
        run.log.append(line, self.lock)
        run.line = len(run.losses), run.seconds
        return line

    def _save(self, is_best: bool = False) -> None:
        run = self._run
        checkpoint = Checkpoint(
            run.settings,
            run.record,
            self.device,
            run.epochs_done,
            run.losses,
            run.seconds,
            self.trainer.store_parameters(),
            self.trainer.store_optimizer_state(),
        )
        run.store.save(checkpoint, self.lock, is_best)
        run.checkpoint = checkpoint

    def _diverged(self, order: np.ndarray, fault: NumericalFault) -> DivergedRun:
        run = self._run
        position = len(run.losses)
        sample = f"sample {position} (utterance {order[position]} of {run.corpus.name}'s train split)"
        error = DivergedRun(
            f"epoch {run.epochs_done + 1}: {FAULTS[fault.fault].format(sample=sample)}, at learning rate "
            f"{fault.learning_rate:g}; the parameters as before it are saved; go on with: "
            f"{resume_command(run.folder)} --lr LOWER, or, if they have grown too far, start again with a lower one"
        )
        error.fault = fault
        return error
