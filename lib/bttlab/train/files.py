"""One process at a time in a run's folder."""

import contextlib
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bttlab import locks
from bttlab.train.settings import RunError


def is_lock(path: Path) -> bool:
    """Whether a file is what `held` leaves."""
    return path.name == locks.LOCK_FILE


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
