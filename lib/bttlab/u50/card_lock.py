"""One process at a time on a real card: an advisory lock, and a note in its file of who holds it.

The system lets go of the lock when its process ends, however it ends; the note is only what others are told. Emulated
cards belong to their process and need none.
"""

import fcntl
import json
import os
import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from bttlab.errors import BttlabError

LOCK_FOLDER = Path("/tmp")  # of all users; not $TMPDIR, which each may set
NOTE_BYTES = 4096
POLL_SECONDS = 0.2


class CardBusyError(BttlabError):
    """Another process holds the card."""


@dataclass(frozen=True)
class Holder:
    """Who holds a card.

    Parameters
    ----------
    pid : int
    started : int
        When that process started, in clock ticks since the machine did: tells it from a later one with its number.
    since : float
        When it took the card, in seconds since 1970.
    overlay : str
        What it loaded.
    """

    pid: int
    started: int
    since: float
    overlay: str

    @property
    def is_alive(self) -> bool:
        """Whether that process still runs."""
        return _start_of(self.pid) == self.started

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"process {self.pid} since {since} with {self.overlay}"


class CardLock:
    """The lock of a card.

    Parameters
    ----------
    card : str
        What is the card's alone: its PCIe address (BDF).
    folder : path, optional
        Where lock files lie, the same for all users of the machine.
    """

    def __init__(self, card: str, folder: Path | None = None):
        self.card = card
        self.path = Path(folder or LOCK_FOLDER) / f"bttlab-{re.sub('[^A-Za-z0-9]+', '-', card)}.lock"
        self._descriptor: int | None = None

    def acquire(self, overlay: str, wait: float = 0.0) -> None:
        """Take the lock; a second time, note the overlay alone.

        Parameters
        ----------
        overlay : str
            Told to others.
        wait : float
            Seconds to wait for it at most.

        Raises
        ------
        CardBusyError
            If another process has it all the while.
        """
        if self._descriptor is None:
            self._descriptor = self._locked(wait)
        holder = Holder(os.getpid(), _start_of(os.getpid()), time.time(), overlay)
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, json.dumps(asdict(holder)).encode(), 0)

    def release(self) -> None:
        """Give the lock back."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None

    def _locked(self, wait: float) -> int:
        try:
            descriptor = _opened(self.path)
        except OSError as error:
            raise CardBusyError(
                f"{self.path}, the lock of {self.card}, cannot be opened ({error.strerror}); remove it if nobody trains"
            ) from None
        end = time.monotonic() + wait
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return descriptor
            except BlockingIOError:
                if time.monotonic() >= end:
                    os.close(descriptor)
                    holder = _read_note(self.path)
                    waited = f" after {wait:g} s" if wait else ""
                    raise CardBusyError(
                        f"{self.card} is held{waited} by {holder or 'another process'}: wait for it with --wait "
                        "SECONDS, end it, or use --device emulated"
                    ) from None
                time.sleep(min(POLL_SECONDS, max(0.0, end - time.monotonic())))


def stale_notes(folder: Path | None = None) -> dict[Path, Holder]:
    """Return the lock files in which a process that is gone still stands: its card is free, the next one takes it."""
    notes = {path: _read_note(path) for path in sorted(Path(folder or LOCK_FOLDER).glob("bttlab-*.lock"))}
    return {path: holder for path, holder in notes.items() if holder is not None and not holder.is_alive}


def _read_note(path: Path) -> Holder | None:
    """Who noted that it holds a card; None if nobody did, or the note is none."""
    try:
        holder = Holder(**json.loads(path.read_bytes()[:NOTE_BYTES]))
        return Holder(int(holder.pid), int(holder.started), float(holder.since), str(holder.overlay))
    except (OSError, ValueError, TypeError, OverflowError, RecursionError):
        return None


def _opened(path: Path) -> int:
    """Open a lock file that every user of the machine may lock."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        descriptor = os.open(path, flags | os.O_CREAT, 0o666)
        os.fchmod(descriptor, 0o666)  # whatever the umask
        return descriptor


def _start_of(pid: int) -> int | None:
    """When a process started, in clock ticks; None if there is none."""
    try:
        # The name, in parentheses, may hold blanks; the 22nd field is the 20th after it.
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None
