"""Prepare a run: a new one, or one that continues from its checkpoint."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bttlab.data import Corpus, Samples, load_corpus
from bttlab.model import ModelConfig, ModuleConfig
from bttlab.runs.checkpoint import CheckpointStore
from bttlab.runs.folder import check_free
from bttlab.runs.module import check_labels, model_of_run
from bttlab.runs.run import Run
from bttlab.runs.scores import counted
from bttlab.runs.settings import RunError, RunSettings

CHANGEABLE = ("epochs", "learning_rate", "device", "overlay", "keep", "data")  # of a run that is resumed


def start_run(
    folder: Path,
    settings: RunSettings,
    corpus: Corpus,
    samples: Mapping[str, Samples] | None = None,
    model: ModelConfig | ModuleConfig | None = None,
) -> Run:
    """Prepare a new run; nothing is written before it trains.

    Parameters
    ----------
    folder : path
        Folder of the run, which no other run uses.
    settings : RunSettings
        Settings of training.
    corpus : Corpus
        The corpus to train on.
    samples : mapping of str to Samples, optional
        Encoded splits by name; by default all three of the corpus.
    model : ModelConfig or ModuleConfig, optional
        By default the configuration of the settings; of a module, its `ModuleModel`, which is loaded again if it was
        loaded with another seed than the settings'.

    Returns
    -------
    Run
        The run, which has not begun.

    Raises
    ------
    RunError
        If the folder is in use.
    CorpusError
        If the corpus does not fit the model.
    """
    folder = Path(folder)
    check_free(folder, model)
    if isinstance(settings.config, ModuleConfig):
        check_labels(corpus, settings.config)
        model = _with_seed(model, settings.seed)
    return Run(folder, settings, corpus, CheckpointStore(folder), samples=samples, model=model)


def _with_seed(model: Any, seed: int) -> Any:
    if not getattr(model, "source", b""):
        return model
    from bttlab.compiler.module_file import with_seed

    return with_seed(model, seed)


def resume_run(folder: Path, changes: Mapping[str, Any] | None = None, trust: bool = False) -> Run:
    """Prepare to continue a run from its checkpoint.

    Parameters
    ----------
    folder : path
        Folder of the run.
    changes : mapping, optional
        New values of settings by name, of those in `CHANGEABLE`. `data` is the place of the same corpus.
    trust : bool
        As for `bttlab.runs.module.model_of_run`.

    Returns
    -------
    Run
        The run, with the state of its checkpoint.

    Raises
    ------
    CheckpointError
        If there is no sound checkpoint.
    RunError
        If more epochs are done, or the corpus is not the one it was started on.
    CorpusError
        If the corpus cannot be read.
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
    if settings.epochs == checkpoint.epochs_done and len(checkpoint.losses):
        begun = settings.epochs + 1
        raise RunError(
            f"--epochs {settings.epochs}: {counted(len(checkpoint.losses), 'sample')} of epoch {begun} are trained "
            f"already; give at least {begun}"
        )
    corpus = load_corpus(settings.data, settings.unknown_labels)
    if not checkpoint.corpus.is_of(corpus):
        raise RunError(
            f"{corpus.folder} is not the corpus {checkpoint.corpus.name} that the run in {folder} was started on; "
            "give its place with --data, or start another run"
        )
    model, note = model_of_run(folder, checkpoint, trust)
    run = Run(folder, settings, corpus, store, checkpoint, model=model)
    run.notes[:0] = filter(None, (warning, note))
    return run
