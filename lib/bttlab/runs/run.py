"""A training run: epochs over a corpus, with scores and a checkpoint after each. A continued run has the same bits."""

import importlib
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from bttlab.data import Corpus, Samples, load_corpus
from bttlab.model import ModelConfig, ModuleConfig, Trainer
from bttlab.runs.checkpoint import CheckpointStore
from bttlab.runs.folder import check_free, make_folder, remove_folder, run_lock
from bttlab.runs.module import check_labels, model_of_run
from bttlab.runs.plan import Callback, Control, EvaluationPlan
from bttlab.runs.progress import ProgressBar
from bttlab.runs.record import STOPPED
from bttlab.runs.settings import RunError, RunSettings
from bttlab.runs.stop import StopSignals
from bttlab.runs.training import RunResult, RunState, Training
from bttlab.runs.u50 import OnRecord

if TYPE_CHECKING:
    from bttlab.compiler.module import ModuleModel

EPOCHS, NO_CONTROL, NO_CALLBACK = EvaluationPlan(), Control(), Callback()
CHANGEABLE = ("epochs", "learning_rate", "device", "overlay", "keep", "data")  # of a run that is resumed


class Run(RunState):
    """A run and its folder: checkpoint.safetensors, the checkpoint before it, metrics.jsonl, and run.json.

    Use `start_run` or `resume_run` to get one.
    """

    def finished(self) -> RunResult | None:
        """Return how the run ended if all its epochs are trained and tested; None if something is left to do."""
        epochs = [line for line in self.log.lines if line["event"] == "epoch"]
        if self.checkpoint is None or self.epochs_done < self.settings.epochs or not epochs:
            return None
        last = self.log.lines[-1]
        if last["event"] != "test" or last.get("epochs") != self.epochs_done:
            return None
        return self.result(epochs[-1], last.get("test"), self.checkpoint.parameters)

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
        is_new = self.checkpoint is None and make_folder(self.folder)
        with StopSignals() as stop, run_lock(self.folder) as lock:
            if self.checkpoint is None:
                check_free(self.folder, self.model)  # again, now that no other process can write there
            else:
                self.store.check_unchanged()
                if plan.scores_test and (finished := self.finished()):
                    trainer.load_parameters(self.checkpoint.parameters, self.checkpoint.optimizer_state)
                    return finished
            training = Training(self, trainer, device, progress or ProgressBar(), plan, control, callback, stop, lock)
            if threading.current_thread() is threading.main_thread():
                importlib.import_module("seqeval.metrics")  # slow: not while a signal's stop is waited for
            try:
                training.begin(provenance)
            except BaseException:
                if is_new and self.checkpoint is None:  # no half of a run stays
                    remove_folder(self.folder)
                raise
            with training.recorded(on_record, provenance) as record:
                result = training.run()
                if not (result.test or plan.is_over(self.count)):
                    record.status = STOPPED
                return result


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


def resume_run(folder: Path, changes: Mapping[str, Any] | None = None, trust: bool = False) -> Run:
    """Prepare to continue a run from its checkpoint, with changes of the fields in `CHANGEABLE`.

    `data` is the place of the same corpus; `trust` is as for `bttlab.runs.module.model_of_run`. Raises CheckpointError
    if there is no sound checkpoint; RunError if more epochs are done, or the corpus is not the one it was started on;
    CorpusError if the corpus cannot be read.
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
