"""The lock of a run's folder."""

import contextlib
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bttlab.runs.settings import RunError
from bttlab.util import locks


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Lock a run's folder; the system releases the lock when the process ends.

    Raises
    ------
    RunError
        If another process holds the lock, or the folder has no lock file of this user's.
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
    """Return the command that continues a run."""
    return f"bttlab train --resume {shlex.quote(str(folder))}"
