"""The lock of a real card: one process at a time. Its file has a note that names the process to others.

The system releases the lock when the process ends. Emulated cards belong to their process and need no lock. Every user
may write to /tmp, so a lock's file must be a regular file with one name, and is opened without following links.
"""

import errno
import functools
import itertools
import json
import os
import pwd
import re
import stat
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bttlab.errors import BttlabError
from bttlab.locks import holders, try_lock

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
    """The note of a process that holds a card.

    Parameters
    ----------
    pid : int
    started : int
        When that process started, in clock ticks since boot: a later process may have the same number.
    since : float
        When it took the card, in seconds since 1970.
    overlay : str
        Its name or path.
    hung : bool
        Whether a kernel of the process did not end.
    """

    pid: int
    started: int
    since: float
    overlay: str
    hung: bool = False

    @property
    def is_alive(self) -> bool:
        """Whether the process still runs."""
        return start_of(self.pid) == self.started

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"{process_in_words(self.pid)} since {since} with {self.overlay}"


class CardLock:
    """The lock of a card.

    Parameters
    ----------
    card : str
        Its PCIe address (BDF).
    folder : path, optional
        By default `lock_folder()`.
    """

    def __init__(self, card: str, folder: Path | None = None):
        self.card = card
        self.path = Path(folder or lock_folder()) / file_name(card, "lock")
        self._descriptor: int | None = None

    def acquire(self, overlay: str, wait: float = 0.0) -> None:
        """Take the lock, or change the note of the lock that is held.

        Parameters
        ----------
        overlay : str
            For the note.
        wait : float
            Seconds to wait at most.

        Raises
        ------
        CardBusyError
            If another process holds the lock for that long.
        """
        if self._descriptor is None:
            self._descriptor = self._locked(wait)
        self._write(Holder(os.getpid(), start_of(os.getpid()), time.time(), overlay))

    def mark_hung(self) -> None:
        """Note that a kernel did not end. The note stays until somebody takes the lock again."""
        note = None if self._descriptor is None else _read_note(self._descriptor)
        if note is not None:
            self._write(replace(note, hung=True))

    def release(self) -> None:
        """Give the lock back."""
        if self._descriptor is not None:
            note = _read_note(self._descriptor)
            if note is None or not note.hung:
                os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None

    def _write(self, holder: Holder) -> None:
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, json.dumps(asdict(holder)).encode(), 0)

    def _locked(self, wait: float) -> int:
        try:
            descriptor = _opened(self.path)
        except OSError as error:
            raise CardBusyError(
                f"{self.path}, the lock of {self.card}, cannot be used: {_fault(self.path, error)}"
            ) from None
        end = time.monotonic() + wait
        try:
            while True:
                if try_lock(descriptor):
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


@functools.cache
def process_lock(card: str) -> CardLock:
    """Return this process's one lock of a card, for all of PYNQ's objects of that card."""
    return CardLock(card)


def card_name(device: Any) -> str:
    """Return a card's PCIe address where XRT's driver gives it, else its name and tag."""
    path = getattr(device, "sysfs_path", None)
    return Path(path).name if path else f"{device.name}-{device.tag}"


def emulated_name(index: int) -> str:
    """Return the name of an emulated card by its number, from 0."""
    return f"emulated_u50_{index}"


def file_name(card: str, ending: str) -> str:
    """Return the name of a card's file in a folder that all users share."""
    return f"bttlab-{re.sub('[^A-Za-z0-9]+', '-', card)}.{ending}"


def lock_folder() -> Path:
    """Return the folder of locks for all users: the administrator's if there is one, else /tmp."""
    try:
        status = ADMINISTRATORS.lstat()
    except OSError:
        return ANYBODYS
    own = stat.S_ISDIR(status.st_mode) and status.st_uid == 0 and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return ADMINISTRATORS if own else ANYBODYS


def stale_notes(folder: Path | None = None) -> dict[Path, Holder]:
    """Return the notes of root's and this user's lock files that name a process that has ended, or a hung kernel."""
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
    return {path: note for path, note in sorted(notes.items()) if note is not None and (note.hung or not note.is_alive)}


def _read_note(descriptor: int) -> Holder | None:
    """Return the note in a lock file; None if there is none, or it is damaged."""
    try:
        holder = Holder(**json.loads(os.pread(descriptor, NOTE_BYTES, 0)))
        time.localtime(holder.since)  # raises if no calendar has it
        return Holder(int(holder.pid), int(holder.started), float(holder.since), str(holder.overlay), bool(holder.hung))
    except (OSError, ValueError, TypeError, OverflowError, RecursionError):
        return None


def _holder(descriptor: int) -> str:
    """Return the process that holds a lock, in words: the note if the system lists its process as the holder."""
    note, listed = _read_note(descriptor), [pid for pid in holders(os.fstat(descriptor)) or () if pid > 0]
    if note is not None and note.is_alive and (not listed or note.pid in listed):
        return str(note)
    return " and ".join(map(process_in_words, listed)) or "another process"


def process_in_words(pid: int) -> str:
    """Return a process's number and user, in words."""
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
    """Open a lock file that every user of the machine may lock, or make it."""
    try:
        descriptor = os.open(path, _FLAGS)
    except FileNotFoundError:
        try:
            descriptor = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o666)
            os.fchmod(descriptor, 0o666)  # whatever the umask
        except FileExistsError:  # since a moment ago
            descriptor = os.open(path, _FLAGS)
    if not _is_lock(os.fstat(descriptor)):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no lock file")
    return descriptor


def _is_lock(status: os.stat_result) -> bool:
    """Return True for a regular file with one name."""
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1


def _fault(path: Path, error: OSError) -> str:
    """Return the reason why a lock file cannot be used, and a remedy."""
    try:
        owner = user_name(path.lstat().st_uid)
    except OSError:
        return f"{error.strerror}; ask an administrator to make it, as docs/security.md says"
    return f"it is of user {owner} ({error.strerror}); have that user or an administrator remove it: rm {path}"


def start_of(pid: int) -> int | None:
    """Return when a process started, in clock ticks; None if there is no such process."""
    try:
        # The name, in parentheses, may hold blanks; the 22nd field is the 20th after it.
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None
