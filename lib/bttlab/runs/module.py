"""The module of a run: its folder has copies of the file and of the files beside it that it imports.

Later commands run these copies. They must be what the run was trained with, and this user must have trained it: the
digest of a module stands in the checkpoint beside it, so whoever made both chose both. A seal in the folder, which only
this user can make, says that a training of this user put the module there.
"""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bttlab.data import Corpus, CorpusError
from bttlab.model import ModelConfig, ModuleConfig
from bttlab.runs.settings import RunError
from bttlab.runs.stored_module import TOLERANCE
from bttlab.util.errors import BttlabError
from bttlab.util.files import write_file
from bttlab.util.reading import read_bytes
from bttlab.util.trust import is_sealed, seal

if TYPE_CHECKING:
    from bttlab.compiler.module import ModuleModel
    from bttlab.runs.checkpoint import Checkpoint

MODULE_FILE, MODULE_FILES, MODULE_SEAL = "model.py", "model_files", "model.seal"  # in the folder of a run


def model_of_run(
    folder: Path, checkpoint: "Checkpoint", trust: bool = False
) -> tuple[ModelConfig | ModuleConfig, str | None]:
    """Return the model of a run's checkpoint; that of a module runs the copies of its files.

    Parameters
    ----------
    folder : path
        Folder of the run.
    checkpoint : Checkpoint
        One of the run's.
    trust : bool
        Whether the copies are run whatever they are.

    Returns
    -------
    model : ModelConfig or ModuleModel
        The model. A module has the checkpoint's buffers and frozen parameters, and not yet those that it trains.
    note : str or None
        For the user: what could not be checked.

    Raises
    ------
    RunError
        If the copies are not what the run was started with, if no training of this user put them there, or if they make
        another model, or one that computes with other constants.
    BttlabError
        If the copies cannot be read or run.
    """
    config = checkpoint.settings.config
    if not isinstance(config, ModuleConfig):
        return config, None
    from bttlab.compiler.module_file import module_digest, read_source

    folder = Path(folder)
    path, beside = folder / MODULE_FILE, folder / MODULE_FILES
    source = read_source(path)
    names = sorted(file.relative_to(beside).as_posix() for file in beside.rglob("*.py"))
    files = {name: read_source(beside / name) for name in names}
    digest = module_digest(source, files)
    if not trust:
        hint = "read it, and if you trust it, add --trust: it is code, and runs with your rights"
        if digest != config.module_sha256:
            raise RunError(
                f"{path} is not the file that the run was started with (SHA-256 {digest[:12]}…, listed "
                f"{config.module_sha256[:12]}…); {hint}"
            )
        if not _is_sealed(folder, digest):
            raise RunError(f"{path} was not put there by a training of yours on this machine; {hint}")
    return model_of_source(folder, config, source, files, checkpoint.settings.seed, checkpoint)


def model_of_source(
    folder: Path,
    config: ModuleConfig,
    source: bytes,
    files: Mapping[str, bytes],
    seed: int,
    checkpoint: "Checkpoint | None" = None,
) -> tuple["ModuleModel", str | None]:
    """Run a module's file, with those beside it that it imports, as what `model_of_run` reads in a run's folder.

    The module gets buffers and frozen parameters of the checkpoint, if there is one, before it is traced. A note says
    what could not be checked, as of `model_of_run`.

    Raises RunError if it is another model than `config`, or computes with other constants than the checkpoint's;
    BttlabError if it cannot be run.
    """
    from bttlab.compiler.module_file import module_of_source

    path = Path(folder) / MODULE_FILE
    task = next((task for task in config.tasks if task != "classification"), None)
    values = checkpoint.constant_values if checkpoint else None
    model = module_of_source(source, path, config.title, config.sequence_length, seed, files, task, values)
    model = replace(model, module=config.module, module_sha256=config.module_sha256)
    if model.config != config:
        raise RunError(f"{path} makes another model than that of the run's checkpoint; put the run's own file there")
    return model, None if checkpoint is None else _check_constants(path, model, checkpoint)


def _check_constants(path: Path, model: "ModuleModel", checkpoint: "Checkpoint") -> str | None:
    """Return a note if a module may have other constants than the run was trained with; RunError if it has."""
    stored = checkpoint.module
    if stored is None:
        return (
            "an earlier bttlab wrote the checkpoint, without the module's buffers: it is not checked that "
            f"{path} computes with the constants that the run was trained with"
        )
    if stored.is_same_graph(model):
        return None
    if stored.has_same_outputs(model):
        return (
            f"{path} is traced to another graph than in training, whose outputs are equal within {TOLERANCE:g}: an "
            "unbroken run may differ in its last bits"
        )
    from bttlab.compiler.module_state import graph_digest

    raise RunError(
        f"{path} computes with other constants than the run was trained with (graph SHA-256 "
        f"{graph_digest(model.graph)[:12]}…, in the checkpoint {stored.graph_sha256[:12]}…): {model.title} takes "
        "values from outside of the file, such as from another file, the time or the system, or the file was changed; "
        "put back what it was trained with, or train again"
    )


def _is_sealed(folder: Path, digest: str) -> bool:
    from bttlab.compiler.module_file import read_source

    try:
        return is_sealed(read_source(folder / MODULE_SEAL).decode("ascii", "replace").strip(), digest)
    except BttlabError:
        return False


def keep_module(folder: Path, model: "ModuleModel") -> str:
    """Write the copies of a new run's module, and its seal; return a note for the user if it cannot be sealed.

    Raises RunError if the module has no file, or a copy cannot be written.
    """
    if not model.source:
        raise RunError(f"{model.title} has no file for a run to keep; load it from FILE.py (--model, load_module)")
    try:
        return write_module(folder, model.source, model.files)
    except OSError as error:
        raise RunError(f"{folder / MODULE_FILE} cannot be written ({error.strerror}); choose another --out") from None


def write_module(folder: Path, source: bytes, files: Mapping[str, bytes]) -> str:
    """Write a module's file, those beside it that it imports, and the seal, as `model_of_run` reads them.

    Returns a note if it cannot be sealed. Raises OSError if a file cannot be written.
    """
    write_file(folder / MODULE_FILE, source)
    for name, data in files.items():
        path = folder / MODULE_FILES / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, data)
    return seal_module(folder, source, files)


def seal_module(folder: Path, source: bytes, files: Mapping[str, bytes]) -> str:
    """Write the seal of a module that this user runs; return a note if there is no secret for it.

    Raises OSError if the file cannot be written.
    """
    from bttlab.compiler.module_file import module_digest

    try:
        made = seal(module_digest(source, files))
    except OSError as error:
        return (
            f"{folder / MODULE_FILE} is not sealed as yours ({error.filename}: {error.strerror}): later commands on "
            "the run ask for --trust"
        )
    write_file(folder / MODULE_SEAL, f"{made}\n")
    return ""


def is_copy(path: Path, model: object) -> bool:
    """Return whether a file or folder is a copy of this module's, as `keep_module` writes it."""
    if path.name == MODULE_SEAL:
        return bool(getattr(model, "source", b""))
    if path.name == MODULE_FILES:
        return bool(getattr(model, "files", None))
    return path.name == MODULE_FILE and path.is_file() and getattr(model, "source", b"") == read_bytes(path)


def remove_module(folder: Path) -> None:
    for name in (MODULE_FILE, MODULE_SEAL):
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / MODULE_FILES, ignore_errors=True)


def check_labels(corpus: Corpus, config: ModuleConfig) -> None:
    """Raise CorpusError if a corpus has none of the labels that a module gives."""
    intents, tags = set(corpus.train.intents), {tag for tags in corpus.train.slots for tag in tags}
    for task, labels, what in (("classification", intents, "intent"), ("tagging", tags, "tag")):
        if task in config.tasks and len(labels) < 2:
            raise CorpusError(
                f"{config.title} gives a label for each {'sample' if what == 'intent' else 'token'}, and all of "
                f"{corpus.folder} have the {what} {', '.join(labels)}; use a corpus with {what}s, or another module"
            )
