"""The module of a run: its folder has copies of the file and of the files beside it that it imports.

Later commands run these copies. They must be what the run was trained with, and files that only their user can change.
"""

import os
import shutil
import stat
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bttlab.data import Corpus, CorpusError
from bttlab.model import ModelConfig, ModuleConfig
from bttlab.runs.settings import RunError
from bttlab.util.files import write_file

if TYPE_CHECKING:
    from bttlab.compiler.module import ModuleModel

MODULE_FILE, MODULE_FILES = "model.py", "model_files"  # in the folder of a run


def model_of_run(
    folder: Path, config: ModelConfig | ModuleConfig, trust: bool = False, seed: int = 0
) -> ModelConfig | ModuleConfig:
    """Return the model of a run; that of a module runs the copies of its files, with `trust` whatever they are.

    `seed` is of the module's own initial parameters, which a checkpoint replaces. Raises RunError if the copies are not
    what the run was started with, or others can change them; BttlabError if they cannot be read or run, or make another
    model.
    """
    if not isinstance(config, ModuleConfig):
        return config
    from bttlab.compiler.module_file import module_digest, module_of_source, read_source

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
        if culprit := _changeable(folder, [path, *(beside / name for name in names)]):
            raise RunError(f"{culprit} belongs to another user, or another user can change it; {hint}")
    task = next((task for task in config.tasks if task != "classification"), None)
    model = module_of_source(source, path, config.title, config.sequence_length, seed, files, task)
    model = replace(model, module=config.module, module_sha256=config.module_sha256)
    if model.config != config:
        raise RunError(f"{path} makes another model than that of the run's checkpoint; put the run's own file there")
    return model


def _changeable(folder: Path, files: list[Path]) -> Path | None:
    """Return the first of a run's folder and files that another user owns, or can change; None if there is none.

    A folder that only this user can enter protects what is in it.
    """
    for path in [folder, *files]:
        status = path.stat()
        if status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return path
        if path == folder and not status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            return None
    return None


def keep_module(folder: Path, model: "ModuleModel") -> None:
    """Write the copies of a new run's module; RunError if the module has no file, or a copy cannot be written."""
    if not model.source:
        raise RunError(f"{model.title} has no file for a run to keep; load it from FILE.py (--model, load_module)")
    try:
        write_module(folder, model.source, model.files)
    except OSError as error:
        raise RunError(f"{folder / MODULE_FILE} cannot be written ({error.strerror}); choose another --out") from None


def write_module(folder: Path, source: bytes, files: Mapping[str, bytes]) -> None:
    """Write a module's file, and those beside it that it imports, as `model_of_run` reads them; may raise OSError."""
    write_file(folder / MODULE_FILE, source)
    for name, data in files.items():
        path = folder / MODULE_FILES / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, data)


def is_copy(path: Path, model: object) -> bool:
    """Return whether a file or folder is a copy of this module's, as `keep_module` writes it."""
    if path.name == MODULE_FILES:
        return bool(getattr(model, "files", None))
    return path.name == MODULE_FILE and path.is_file() and getattr(model, "source", b"") == path.read_bytes()


def remove_module(folder: Path) -> None:
    (folder / MODULE_FILE).unlink(missing_ok=True)
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
