"""One process at a time on a real card: an advisory lock, and a note in its file of who holds it.

The system lets go of the lock when its process ends, however it ends; the note is only what others are told, and the
system is asked first. Emulated cards belong to their process and need none.

Every user of the machine may write in /tmp, so whatever lies there under a lock's name is looked at before it is used:
a regular file with this one name, opened without waiting and without following links. A lock that another user holds
for good can only be told of; an administrator makes /run/bttlab (docs/security.md) where that is not to be.
"""

import errno
import itertools
import json
import os
import pwd
import re
import stat
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bttlab.errors import BttlabError
from bttlab.locks import holders, lock_listed

ADMINISTRATORS = Path("/run/bttlab")  # root's, with the files in it: nobody else can plant a name there
ANYBODYS = Path("/tmp")  # of all users; not $TMPDIR, which each may set
NOTE_BYTES = 4096
MOST_NOTES = 64  # that are looked at
_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
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
        return start_of(self.pid) == self.started

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"{process_in_words(self.pid)} since {since} with {self.overlay}"


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
        self.path = Path(folder or lock_folder()) / file_name(card, "lock")
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
        holder = Holder(os.getpid(), start_of(os.getpid()), time.time(), overlay)
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
                f"{self.path}, the lock of {self.card}, cannot be used: {fault(self.path, error)}"
            ) from None
        end = time.monotonic() + wait
        try:
            while True:
                if lock_listed(descriptor):
                    return descriptor
                if time.monotonic() >= end:
                    waited = f" after {wait:g} s" if wait else ""
                    raise CardBusyError(
                        f"{self.card} is held{waited} by {_holder(descriptor)}: wait for it with --wait SECONDS, "
                        "ask whose it is or an administrator to end it, or use --device emulated"
                    )
                time.sleep(min(POLL_SECONDS, max(0.0, end - time.monotonic())))
        except BaseException:
            os.close(descriptor)
            raise


def card_name(device: Any) -> str:
    """Return what is a card's alone: its PCIe address where XRT's driver tells it; an emulated one's name."""
    path = getattr(device, "sysfs_path", None)
    return Path(path).name if path else f"{device.name}-{device.tag}"


def emulated_name(index: int) -> str:
    """Return the name of an emulated card by its number, from 0."""
    return f"emulated_u50_{index}"


def file_name(card: str, ending: str) -> str:
    """Return the name of a card's file in a folder that all users share."""
    return f"bttlab-{re.sub('[^A-Za-z0-9]+', '-', card)}.{ending}"


def lock_folder() -> Path:
    """Return where the locks lie, the same for all users: the administrator's folder, if there is one, else /tmp."""
    try:
        status = ADMINISTRATORS.lstat()
    except OSError:
        return ANYBODYS
    own = stat.S_ISDIR(status.st_mode) and status.st_uid == 0 and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return ADMINISTRATORS if own else ANYBODYS


def stale_notes(folder: Path | None = None) -> dict[Path, Holder]:
    """Return the lock files in which a process that is gone still stands: its card is free, the next one takes it.

    Only files of root and of this user are looked at: what others write is not to be believed, nor theirs to remove.
    """
    notes = {}
    for path in itertools.islice(Path(folder or lock_folder()).glob("bttlab-*.lock"), MOST_NOTES):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            if _is_lock(os.fstat(descriptor)) and os.fstat(descriptor).st_uid in (0, os.geteuid()):
                notes[path] = _read_note(descriptor)
        finally:
            os.close(descriptor)
    return {path: notes[path] for path in sorted(notes) if notes[path] is not None and not notes[path].is_alive}


def _read_note(descriptor: int) -> Holder | None:
    """Who noted that it holds a card; None if nobody did, or the note is none."""
    try:
        holder = Holder(**json.loads(os.pread(descriptor, NOTE_BYTES, 0)))
        time.localtime(holder.since)  # raises if no calendar has it
        return Holder(int(holder.pid), int(holder.started), float(holder.since), str(holder.overlay))
    except (OSError, ValueError, TypeError, OverflowError, RecursionError):
        return None


def _holder(descriptor: int) -> str:
    """Who holds the lock of an open file: what the system says, and the note if it is that process's."""
    note, listed = _read_note(descriptor), [pid for pid in holders(os.fstat(descriptor)) or () if pid > 0]
    if note is not None and note.is_alive and (not listed or note.pid in listed):
        return str(note)
    return " and ".join(map(process_in_words, listed)) or "another process"


def process_in_words(pid: int) -> str:
    """A process in words, with its user."""
    try:
        return f"process {pid} of user {user_name(os.stat(f'/proc/{pid}').st_uid)}"
    except OSError:
        return f"process {pid}"


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _opened(path: Path) -> int:
    """Open a lock file that every user of the machine may lock; what is no lock file is not waited for, nor changed."""
    try:
        return open_lock(path)
    except FileNotFoundError:
        try:
            descriptor = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:  # since a moment ago
            return open_lock(path)
        os.fchmod(descriptor, 0o666)  # whatever the umask
        return descriptor


def open_lock(path: Path) -> int:
    """Open a lock file that is there.

    Raises
    ------
    OSError
        If it is none, or not to be opened.
    """
    descriptor = os.open(path, _FLAGS)
    if not _is_lock(os.fstat(descriptor)):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no lock file")
    return descriptor


def _is_lock(status: os.stat_result) -> bool:
    """Whether it is a regular file that has no other name, under which it would be somebody's."""
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1


def fault(path: Path, error: OSError) -> str:
    """Why a lock file cannot be used, and who can put that right."""
    try:
        owner = user_name(path.lstat().st_uid)
    except OSError:
        return f"{error.strerror}; ask an administrator to make it, as docs/security.md says"
    return f"it is of user {owner} ({error.strerror}); have that user or an administrator remove it: rm {path}"


def start_of(pid: int) -> int | None:
    """When a process started, in clock ticks; None if there is none."""
    try:
        # The name, in parentheses, may hold blanks; the 22nd field is the 20th after it.
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None
