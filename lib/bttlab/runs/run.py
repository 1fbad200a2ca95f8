"""A training run: epochs over a corpus, with scores and a checkpoint after each. A continued run has the same bits."""

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from bttlab.data import Augmentation, Augmenter, Corpus, Samples, Vocabulary, encoded_split, epoch_order
from bttlab.data.corpus import SPLIT_NAMES
from bttlab.model import FAULTS, ModelConfig, ModuleConfig, NumericalFault, Trainer, initial_parameters
from bttlab.model.loop import LARGEST_SUM, chunks, train_segments
from bttlab.runs.checkpoint import Checkpoint, CheckpointStore, tensors_digest
from bttlab.runs.devices import OpenedTrainer, open_trainer
from bttlab.runs.evaluation import predict, scores_of
from bttlab.runs.folder import check_free, make_folder, remove_drafts, remove_folder, resume_command, run_lock
from bttlab.runs.metrics import MetricsLog, quantities_of, segment_means
from bttlab.runs.module import keep_module
from bttlab.runs.plan import Callback, EvaluationPlan
from bttlab.runs.progress import ProgressBar
from bttlab.runs.rates import RateHistory, note_of_schedule
from bttlab.runs.recipe import flat
from bttlab.runs.record import COMPLETE, LATEST, RUN_FILE, RUNNING, STOPPED, RunRecord, git_state, read_run, versions
from bttlab.runs.scores import counted, is_better, scores_in_words
from bttlab.runs.settings import CorpusRecord, RunError, RunSettings
from bttlab.runs.stop import StopRequested, StopSignals
from bttlab.runs.stored_module import StoredModule
from bttlab.util.errors import BttlabError
from bttlab.util.quantities import measured

EPOCHS, NO_CALLBACK = EvaluationPlan(), Callback()


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
    """What a run has done when it ends or is stopped.

    Attributes
    ----------
    signal : int or None
        The signal that stopped it, if one did.
    epochs_done : int
        Epochs that are finished.
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


class Run:
    """A run and its folder: checkpoint.safetensors, the checkpoint before it, metrics.jsonl, and run.json.

    Use `start_run` or `resume_run` to get one. It continues from the checkpoint that `store` loaded.

    Parameters
    ----------
    folder : path
        Of the run.
    settings : RunSettings
        Of the run.
    corpus : Corpus
        What it trains on.
    store : CheckpointStore
        Of the folder.
    checkpoint : Checkpoint, optional
        By default the run begins with the initial parameters.
    samples : mapping of str to Samples, optional
        The encoded splits, by default all three.
    model : ModelConfig or ModuleModel, optional
        Of a module, the `ModuleModel`; by default the settings' configuration.

    Raises
    ------
    CorpusError
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
        model: ModelConfig | ModuleConfig | None = None,
    ):
        self.model: Any = model or settings.config  # a `ModelConfig` or `ModuleModel`: what a trainer is opened for
        self.folder, self.settings, self.corpus = folder, settings, corpus
        self.corpus_record = (
            checkpoint.corpus if checkpoint else CorpusRecord.of(corpus, settings.config, settings.word_classes)
        )
        vocabulary = Vocabulary.from_list(self.corpus_record.vocabulary)
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
        self._module = checkpoint.module if checkpoint else None  # of a user's module, when it trains
        self._rates = RateHistory.of(checkpoint.settings if checkpoint else settings, {})
        if checkpoint and (note := note_of_schedule(checkpoint.settings, settings, self.count, len(self.order(0)))):
            self.notes.append(note)
        self._line = 0, 0.0  # where in the epoch the next line of metrics.jsonl begins, in samples and seconds
        self._has_begun = False

    def order(self, epoch: int) -> np.ndarray:
        return epoch_order(len(self.corpus.train), self.settings.seed, epoch)[: self.settings.samples]

    @property
    def lengths(self) -> Counter[int]:
        return Counter(map(int, self.samples["train"].lengths))

    @property
    def count(self) -> int:
        return self.epochs_done * len(self.order(0)) + len(self.losses)

    def _result(
        self, epoch: dict | None, test: dict | None, parameters: Mapping[str, np.ndarray], signal: int | None = None
    ) -> RunResult:
        return RunResult(signal, self.epochs_done, len(self.losses), epoch, test, tensors_digest(parameters))

    def finished(self) -> RunResult | None:
        """Return how the run ended if all its epochs are trained and tested; None if something is left to do."""
        epochs = [line for line in self.log.lines if line["event"] == "epoch"]
        if self.checkpoint is None or self.epochs_done < self.settings.epochs or not epochs:
            return None
        last = self.log.lines[-1]
        if last["event"] != "test" or last.get("epochs") != self.epochs_done:
            return None
        return self._result(epochs[-1], last.get("test"), self.checkpoint.parameters)

    def is_recorded(self) -> bool:
        """Return whether run.json says that the run is complete."""
        try:
            return read_run(self.folder).status == COMPLETE
        except BttlabError:
            return False

    def open_trainer(self, trust: bool = False, wait: float = 0.0, require_card: bool = False) -> OpenedTrainer:
        """Open a trainer on the settings' device; the rest is as for `bttlab.runs.devices.open_trainer`."""
        settings = self.settings
        choices = settings.flow, settings.overlay, settings.optimizer
        return open_trainer(
            self.model, settings.device, trust, wait, *choices, require_card, self.lengths, settings.cards
        )

    def train(
        self,
        trainer: Trainer,
        device: str,
        progress: ProgressBar | None = None,
        provenance: Mapping[str, str] = MappingProxyType({}),
        plan: EvaluationPlan = EPOCHS,
        callback: Callback = NO_CALLBACK,
    ) -> RunResult:
        """Train up to the settings' number of epochs, then score the test split. After a fault it can be called again.

        The trainer is for the settings' model; its parameters are replaced. `provenance` of an `OpenedTrainer` is for
        run.json; a run that continues on another overlay or program says so. SIGINT, SIGTERM and SIGHUP stop the run
        within about a quarter second, between two samples, and save the position.

        Raises DivergedRun if a loss, gradient or update is not finite; parameters and position are saved as before that
        sample; RunError or CheckpointError if the folder is another run's, or cannot be written.
        """
        check_model(trainer, self.settings.config)
        self._trainer, self._device, self._progress = trainer, device, progress or ProgressBar()
        self._plan, self._callback = plan, callback
        is_new = self.checkpoint is None and make_folder(self.folder)
        with StopSignals() as self._stop, run_lock(self.folder) as self._lock:
            if self.checkpoint is None:
                check_free(self.folder, self.model)  # again, now that no other process can write there
            else:
                self.store.check_unchanged()
            try:
                record = read_run(self.folder)
            except BttlabError:
                if self.checkpoint is not None and (self.folder / RUN_FILE).exists():
                    raise  # its id, beginning and learning rates would be lost
                record = RunRecord("training", self.folder.name, configuration={}, device=device)
            if self.checkpoint is not None and not self._has_begun:  # run.json has what was before
                self._rates = RateHistory.of(self.checkpoint.settings, record.configuration)
            self._rates.change(self.count, self.settings)
            if self.checkpoint is not None and not plan.counts and (finished := self.finished()):
                trainer.load_parameters(self.checkpoint.parameters, self.checkpoint.optimizer_state)
                if record.status != COMPLETE:  # a kill came between the last line of metrics and run.json
                    with self._recorded(record, provenance):
                        pass
                return finished
            try:
                self._begin(record, provenance)
            except BaseException:
                if is_new and self.checkpoint is None:  # no half of a run stays
                    remove_folder(self.folder)
                raise
            with self._recorded(record, provenance):
                result = self._train_and_test()
                if not (result.test or plan.is_over(self.count)):
                    record.status = STOPPED
                return result

    def _begin(self, record: RunRecord, provenance: Mapping[str, str]) -> None:
        """Remove drafts and later lines of metrics, and load the trainer."""
        remove_drafts(self.folder)
        if not self._has_begun:
            self.log.rewind(self.epochs_done)
        self._has_begun = True
        if self._module is None and not isinstance(self.model, ModelConfig):
            self._module = StoredModule.of(self.model)
        if self.checkpoint is None:
            if isinstance(self.model, ModelConfig):
                parameters = initial_parameters(self.model, self.settings.seed)
            else:
                parameters = self.model.parameters()
                if note := keep_module(self.folder, self.model):
                    self._progress.note(f"note: {note}")
            self._trainer.load_parameters(parameters)
            self._save()
            return
        self._trainer.load_parameters(self.checkpoint.parameters, self.checkpoint.optimizer_state)
        if before := self._other_device(record, provenance):
            self._progress.note(f"the run so far was on {before}: an unbroken run may differ in its last bits")

    def _other_device(self, record: RunRecord, provenance: Mapping[str, str]) -> str:
        """Return words for the device, overlay or program of before, if this one is another; else an empty string."""
        if self.checkpoint is not None and self._device != self.checkpoint.device:
            return self.checkpoint.device
        for what in ("overlay", "program"):
            recorded = record.configuration.get(f"{what}.sha256")
            if recorded and recorded != provenance.get(f"{what}.sha256"):
                return f"another {what} (SHA-256 {str(recorded)[:12]}…)"
        return ""

    @contextlib.contextmanager
    def _recorded(self, record: RunRecord, provenance: Mapping[str, str]) -> Iterator[None]:
        """Write run.json at the beginning and the end of the context. If it cannot be written, the run goes on."""
        record.device, record.checkpoint = self._device, LATEST
        record.corpus = {"name": self.corpus_record.name, "sha256": self.corpus_record.sha256}
        record.versions, record.git = versions(), git_state()
        record.status, record.error, record.ended = RUNNING, "", ""

        def write() -> None:
            rates = self._rates.to_configuration(self.count, record.status == RUNNING)
            record.configuration = flat(self.settings) | rates | dict(provenance)
            if "learning_rate" not in rates:  # no single rate made what came of several
                del record.configuration["learning_rate"]
            if self._module is not None:
                record.configuration["graph.sha256"] = self._module.graph_sha256
            rest, seconds = len(self.losses) - self._line[0], self.seconds - self._line[1]
            # Scores of the test are those of the last epoch, so an earlier one's go.
            record.figures = {name: one for name, one in record.figures.items() if not name.startswith("test.")}
            record.figures |= quantities_of(self.log.lines, self._device, rest, seconds)
            self._callback.on_record(record)
            try:
                self._lock.check()
                record.write(self.folder)
            except OSError as error:
                self._progress.note(f"note: {self.folder / RUN_FILE} is not written ({error.strerror})")

        write()
        try:
            yield
            record.end(COMPLETE if record.status == RUNNING else record.status)
        except BaseException as error:
            record.fail(error)
            with contextlib.suppress(RunError):  # the folder has gone, which is what the error says
                write()
            raise
        write()

    def _train_and_test(self) -> RunResult:
        """Train until all epochs are done, the plan is over, or the user stops it."""
        plan, epoch, test = self._plan, None, None
        for line in self.log.lines:
            epoch = line if line["event"] == plan.event else epoch
        try:
            while self.epochs_done < self.settings.epochs and not plan.is_over(self.count):
                epoch = self._train_part()
            if not plan.counts:
                test = self._score("test")
                line = {"event": "test", "epochs": self.epochs_done, "test": test, "device": self._device}
                self.log.append(line, self._lock)
        except StopRequested:
            self._write_rest()
            self._save()
            signal = self._stop.received
            self._progress.note(
                f"stopped{f' by {signal.name}' if signal else ''} after {counted(self.epochs_done, 'epoch')} and "
                f"{counted(len(self.losses), 'sample')}, saved; continue with: {resume_command(self.folder)}"
            )
        signal = None if test or self._stop.received is None else int(self._stop.received)
        return self._result(epoch, test, self._trainer.store_parameters(), signal)

    def _train_part(self) -> dict[str, Any]:
        """Train to the plan's next stop; return the metrics line."""
        plan = self._plan
        number, seed, order = self.epochs_done, self.settings.seed, self.order(self.epochs_done)
        title, before = f"epoch {number + 1}/{self.settings.epochs}", number * len(order)
        first, last = len(self.losses), plan.next_stop(self.count, before + len(order)) - before

        def may_go_on() -> bool:
            self._stop.check()
            self._callback.before(self.count)
            return True

        def step(part: slice) -> np.ndarray:
            peak = self._callback.next_rate(self.settings.learning_rate)
            if peak != self.settings.learning_rate:
                self.settings = replace(self.settings, learning_rate=peak)
                self._rates.change(before + part.start, self.settings)
            settings, steps = self.settings, before + np.arange(part.start, part.stop)
            rates = settings.schedule.rates(peak, steps, settings.epochs * len(order))
            samples = self.augmented(order[part], seed, number)
            return self._trainer.train(samples, settings.optimizer, rates, settings.label_smoothing)

        def trained(part: slice, losses: np.ndarray, seconds: float) -> None:
            self.seconds += seconds
            self.losses = np.concatenate([self.losses, losses])
            self._callback.trained(self.samples["train"][order[part][: len(losses)]], losses, seconds)
            self._progress.advance(losses)

        self._progress.begin(title, len(order), first)
        try:
            size = self.settings.optimizer.batch_size
            largest = size if getattr(self._trainer, "whole_updates", False) else LARGEST_SUM
            segments = chunks(first, last, size, before, largest=largest)
            train_segments(segments, step, trained, may_go_on)
        except NumericalFault as fault:
            self._write_rest()
            kept = self.checkpoint
            if kept is None or len(self.losses) > len(kept.losses):  # else it would push out the one before
                self._save()
            raise self._diverged(order, fault) from None
        finally:
            self._progress.end()
        scores, is_best = None, False
        if not plan.counts or before + last in plan.counts:
            self._callback.evaluation_begins(before + last)
            scores = self._score("dev", plan.utterances)
            earlier = [line["dev"] for line in self.log.lines if line.get("dev")]
            keeps = self.settings.keep == "best" or self.store.best.exists()  # which is no longer the best, otherwise
            is_best = keeps and all(is_better(scores, dev) for dev in earlier)
            self._callback.evaluated(before + last, scores)
        # The line comes first: after a crash in between, the epoch is trained again and its line replaced.
        line = self._write_line(scores)
        if last == len(order):
            self.epochs_done, self.losses, self.seconds, self._line = number + 1, self.losses[:0], 0.0, (0, 0.0)
        self._save(is_best)
        rate = line["samples_per_second"]["value"]
        dev = f"; dev {scores_in_words(scores)}" if scores else ""
        self._progress.note(f"{title}: mean loss {line['mean_loss']:.3f}, {rate:.1f} samples/s{dev}")
        return line

    def _score(self, split: str, most: int | None = None) -> dict[str, Any]:
        samples, decode = self.samples[split][:most], self.settings.decode_tags
        found = predict(self._trainer, samples, self.corpus, decode, f"{split} split", self._progress, self._stop)
        return scores_of(found, self.corpus, split, self._trainer.config, len(samples))

    def _write_rest(self) -> None:
        """Write the metrics of a part that a stop or fault cut short, unless the epoch's line will have them."""
        if self._plan.event != "epoch" and len(self.losses) > self._line[0]:
            self._write_line(None)

    def _write_line(self, scores: dict[str, Any] | None) -> dict[str, Any]:
        """Write and return the metrics since the last line."""
        event = self._plan.event
        how = f"time.perf_counter on this host, around training on {self._device}"
        first, seconds = self._line
        losses, seconds = self.losses[first:], self.seconds - seconds
        size = len(self.order(self.epochs_done))
        step = self.epochs_done * size + first
        line = {
            "event": event,
            **({"epoch": self.epochs_done + 1} if event == "epoch" else {}),
            "samples": len(losses),
            "mean_loss": float(np.mean(losses, dtype=np.float64)),
            "losses": segment_means(losses),
            **({} if scores is None else {"dev": scores}),
            "optimizer": self.settings.optimizer.name,
            "learning_rate": self.settings.learning_rate,
            "first_learning_rate": self._rates.at(step, size),
            "last_learning_rate": self._rates.at(step + len(losses) - 1, size),
            "seconds": measured(seconds, "s", how),
            "samples_per_second": measured(len(losses) / seconds, "1/s", how),
            "device": self._device,
        }
        self.log.append(line, self._lock)
        self._line = len(self.losses), self.seconds
        return line

    def _save(self, is_best: bool = False) -> None:
        checkpoint = Checkpoint(
            self.settings,
            self.corpus_record,
            self._device,
            self.epochs_done,
            self.losses,
            self.seconds,
            self._trainer.store_parameters(),
            self._trainer.store_optimizer_state(),
            self._module,
        )
        self.store.save(checkpoint, self._lock, is_best)
        self.checkpoint = checkpoint

    def _diverged(self, order: np.ndarray, fault: NumericalFault) -> DivergedRun:
        position = len(self.losses) + fault.sample - len(fault.losses)  # of the sample that failed
        sample = f"sample {position} (utterance {order[position]} of {self.corpus.name}'s train split)"
        error = DivergedRun(
            f"epoch {self.epochs_done + 1}: {FAULTS[fault.fault].format(sample=sample)}, at learning rate "
            f"{fault.learning_rate:g}; the parameters as before it are saved; go on with: "
            f"{resume_command(self.folder)} --lr LOWER, or, if they have grown too far, start again with a lower one"
        )
        error.fault = fault
        return error


def check_model(trainer: Trainer, config: ModelConfig | ModuleConfig) -> None:
    given, wanted = trainer.config.to_dict(), config.to_dict()
    names = [name for name in given | wanted if given.get(name) != wanted.get(name)]
    if names:
        differences = "; ".join(f"{name} {given.get(name, 'none')}, not {wanted.get(name, 'none')}" for name in names)
        raise RunError(f"the trainer is for another model than the run's ({differences}); open one for the run's")
