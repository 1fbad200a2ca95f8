"""The lock of a run's folder."""

import contextlib
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import filelock

from bttlab.runs.settings import RunError
from bttlab.util.locks import LOCK_FILE, folder_lock


class RunLock:
    """The lock that this process holds on a run's folder."""

    def __init__(self, folder: Path):
        self._path = folder / LOCK_FILE
        self._locked = os.stat(self._path)

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
            stack.enter_context(folder_lock(folder))
            lock = RunLock(folder)
        except filelock.Timeout:
            raise RunError(f"another process trains in {folder}; wait for it, or choose another --out") from None
        except OSError as error:
            raise RunError(
                f"{folder / LOCK_FILE} cannot be locked ({error.strerror}); choose another --out, or copy the run to a "
                "folder of yours"
            ) from None
        yield lock


def resume_command(folder: Path) -> str:
    return f"bttlab train --resume {shlex.quote(str(folder))}"
