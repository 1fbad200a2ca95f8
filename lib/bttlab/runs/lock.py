"""The lock of a run's folder."""

import contextlib
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from bttlab.runs.settings import RunError
from bttlab.util import locks


class RunLock:
    """The lock that this process holds on a run's folder."""

    def __init__(self, folder: Path, descriptor: int):
        self._path, self._descriptor = folder / locks.LOCK_FILE, descriptor

    def check(self) -> None:
        """Raise RunError if the folder is no longer the one that was locked: another process may train in its place."""
        with contextlib.suppress(OSError):
            there, locked = self._path.stat(), os.fstat(self._descriptor)
            if (there.st_dev, there.st_ino) == (locked.st_dev, locked.st_ino):
                return
        raise RunError(
            f"{self._path.parent} was removed or replaced while this process trained in it: nothing more is written "
            "there; train again with another --out"
        )


@contextlib.contextmanager
def run_lock(folder: Path) -> Iterator[RunLock]:
    """Lock a run's folder; the system releases the lock when the process ends.

    Raises
    ------
    RunError
        If another process holds the lock, or the folder has no lock file of this user's.
    """
    with contextlib.ExitStack() as stack:
        try:
            lock = RunLock(folder, stack.enter_context(locks.held(folder)))
        except locks.FolderBusyError:
            raise RunError(f"another process trains in {folder}; wait for it, or choose another --out") from None
        except OSError as error:
            raise RunError(
                f"{folder / locks.LOCK_FILE} cannot be locked ({error.strerror}); choose another --out, or copy "
                "the run to a folder of yours"
            ) from None
        lock.check()
        yield lock


def resume_command(folder: Path) -> str:
    return f"bttlab train --resume {shlex.quote(str(folder))}"
