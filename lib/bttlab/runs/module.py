"""The module of a run: its folder has a copy of the file, which later commands run if this user has run it before.

A run's folder may come from anywhere, so what stands in it proves nothing. The digests of the files that this user
named with --model lie beside the index of runs.
"""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bttlab.model import ModelConfig, ModuleConfig
from bttlab.runs.index import runs_folder
from bttlab.runs.settings import RunError
from bttlab.util.files import writable_by_others, write_file
from bttlab.util.terminal import say

if TYPE_CHECKING:
    from bttlab.compiler.module import ModuleModel

MODULE_FILE = "model.py"  # in the folder of a run
OWN = "own-modules"  # beside the index: a digest a line


def model_of_run(
    folder: Path, config: ModelConfig | ModuleConfig, trust: bool = False, seed: int = 0
) -> "ModelConfig | ModuleModel":
    """Return the model of a run; that of a module runs the copy of its file.

    Parameters
    ----------
    config : ModelConfig or ModuleConfig
        Of the run's checkpoint.
    trust : bool
        Run the copy whatever it is.
    seed : int
        Of the module's own initial parameters, which a checkpoint replaces.

    Raises
    ------
    RunError
        If the copy is not the file that the run was started with, or one that this user has not run, without `trust`.
    bttlab.util.errors.BttlabError
        If it cannot be read or run, or makes another model.
    """
    if not isinstance(config, ModuleConfig):
        return config
    from bttlab.compiler.module_file import module_of_source, read_source

    path = Path(folder) / MODULE_FILE
    source = read_source(path)
    digest = hashlib.sha256(source).hexdigest()
    if not trust:
        hint = "read it, and if you trust it, add --trust: it is code, and runs with your rights"
        if digest != config.module_sha256:
            raise RunError(
                f"{path} is not the file that the run was started with (SHA-256 {digest[:12]}…, listed "
                f"{config.module_sha256[:12]}…); {hint}"
            )
        if digest not in _own():
            raise RunError(f"{path} is no file that you have trained before (SHA-256 {digest[:12]}…); {hint}")
    model = module_of_source(source, path, config.title, config.sequence_length, seed)
    model = replace(model, module=config.module, module_sha256=config.module_sha256)
    if model.config != config:
        raise RunError(f"{path} makes another model than that of the run's checkpoint; put the run's own file there")
    return model


def keep_module(folder: Path, model: "ModuleModel") -> None:
    """Write the copy of a new run's module, and note its digest for this user.

    Raises
    ------
    RunError
        If the module has no file, or the copy cannot be written.
    """
    if not model.source:
        raise RunError(f"{model.title} has no file for a run to keep; load it from FILE.py (--model, load_module)")
    try:
        write_file(Path(folder) / MODULE_FILE, model.source)
    except OSError as error:
        raise RunError(f"{folder / MODULE_FILE} cannot be written ({error.strerror}); choose another --out") from None
    path = runs_folder() / OWN
    try:
        if model.module_sha256 not in _own():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a") as file:
                file.write(f"{model.module_sha256}\n")
    except OSError as error:
        say(f"bttlab: note: {path} cannot be written ({error.strerror}): to use the run later, add --trust")


def is_copy(path: Path, model: "ModelConfig | ModuleModel | None") -> bool:
    """Return whether a file is the copy of this module, as `keep_module` writes it."""
    return path.name == MODULE_FILE and path.is_file() and getattr(model, "source", b"") == path.read_bytes()


def _own() -> set[str]:
    """Return the digests of this user's files; none if another user can change the list."""
    path = runs_folder() / OWN
    try:
        if culprit := writable_by_others(path, owned=True):
            say(f"bttlab: note: {path} is not used: another user can change {culprit}")
            return set()
        return set(path.read_text().split())
    except FileNotFoundError:
        return set()
