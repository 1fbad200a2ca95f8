"""The folder of a run: whether it is free for a new one, its lock, and its removal."""

import contextlib
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import filelock

from bttlab.model import ModelConfig, ModuleConfig
from bttlab.runs.module import is_copy, remove_module
from bttlab.runs.record import RUN_FILE
from bttlab.runs.settings import RunError
from bttlab.util.files import is_draft, sync_folder
from bttlab.util.locks import HELD, LOCK_FILE, folder_lock, in_use

LOCK_FILES = LOCK_FILE, f"{LOCK_FILE}{HELD}"


class RunLock:
    def __init__(self, path: Path):
        self._path = path
        self._locked = os.stat(path)

    def check(self) -> None:
        """Raise RunError if the folder is no longer the one that was locked: another process may train in its place."""
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(self._path), self._locked):
                return
        raise RunError(
            f"{self._path.parent} was removed or replaced while this process trained in it: nothing more is written "
            "there; train again with another --out"
        )


@contextlib.contextmanager
def run_lock(folder: Path) -> Iterator[RunLock]:
    """Lock a run's folder; the system releases the lock when the process ends.

    Raises RunError if another process holds the lock, or the folder has no lock file of this user's.
    """
    with contextlib.ExitStack() as stack:
        try:
            locked = stack.enter_context(folder_lock(folder))
            lock = RunLock(Path(locked.lock_file))
        except filelock.Timeout:
            raise RunError(f"{in_use(folder)} trains in {folder}; wait for it, or choose another --out") from None
        except OSError as error:
            raise RunError(
                f"{folder / LOCK_FILE} cannot be locked ({error.strerror}); choose another --out, or copy the run to a "
                "folder of yours"
            ) from None
        yield lock


def resume_command(folder: Path) -> str:
    return f"bttlab train --resume {shlex.quote(str(folder))}"


def make_folder(folder: Path) -> bool:
    """Make a run's folder, for this user alone; return whether it is new."""
    try:
        if folder.exists():
            return False
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(0o700, exist_ok=True)
        sync_folder(folder.parent)
        return True
    except OSError as error:
        raise RunError(f"{folder} cannot be made ({error.strerror}); choose another --out") from None


def remove_drafts(folder: Path) -> None:
    """Remove what a crash in the middle of a write left."""
    for path in folder.iterdir():
        if is_draft(path):
            path.unlink(missing_ok=True)


def remove_folder(folder: Path) -> None:
    """Remove the folder of a run that did not begin, unless it holds more than a run puts there."""
    remove_module(folder)
    remove_drafts(folder)
    for name in LOCK_FILES:
        (folder / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()


def check_free(folder: Path, model: ModelConfig | ModuleConfig | None = None) -> None:
    """Raise RunError unless the folder is missing or empty, or has what a crash before the first checkpoint leaves."""
    try:
        contents = [
            path
            for path in folder.iterdir()
            if not (is_draft(path) or path.name in (*LOCK_FILES, RUN_FILE) or is_copy(path, model))
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
