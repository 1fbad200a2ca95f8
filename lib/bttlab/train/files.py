"""Files that outlive a crash, and one process at a time in a run's folder."""

import contextlib
import os
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bttlab import locks
from bttlab.train.settings import RunError

_DRAFT = re.compile(r"\..+\.\d+\.draft")


@contextmanager
def written_draft(path: Path, data: bytes) -> Iterator[Path]:
    """Write a file's next content beside it, safe on disk, for the caller to rename; it is gone in the end.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    try:
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield draft
    finally:
        draft.unlink(missing_ok=True)


def is_lock(path: Path) -> bool:
    """Whether a file is what `held` leaves."""
    return path.name == locks.LOCK_FILE


def is_draft(path: Path) -> bool:
    """Whether a file is what a crash in the middle of `written_draft` leaves."""
    return _DRAFT.fullmatch(path.name) is not None


def sync_folder(folder: Path) -> None:
    """Make renames in a folder last through a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep other runs out of a folder; the system lets go of it when the process ends, however it ends.

    Raises
    ------
    RunError
        If another run is in it.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locks.held(folder))
        except locks.FolderBusyError:
            raise RunError(f"another process trains in {folder}; wait for it, or choose another --out") from None
        except OSError as error:
            raise RunError(
                f"{folder / locks.LOCK_FILE} cannot be locked ({error.strerror}); choose another --out, or copy "
                "the run to a folder of yours"
            ) from None
        yield


def resume_command(folder: Path) -> str:
    """Return what to type to continue a run."""
    return f"bttlab train --resume {shlex.quote(str(folder))}"
