"""The lock of a real card: one process at a time; `/proc/locks` tells the others which.

The system releases the lock when the process ends. Emulated cards belong to their process and need no lock. Every user
may write to /tmp, so a lock's file must be a regular file with one name, and is opened without following links.
"""

import errno
import functools
import itertools
import os
import pwd
import re
import stat
import time
from pathlib import Path
from typing import Any

from bttlab.errors import BttlabError
from bttlab.locks import holders, try_lock

ADMINISTRATORS = Path("/run/bttlab")  # root's, with the files in it: nobody else can plant a name there
ANYBODYS = Path("/tmp")  # of all users; not $TMPDIR, which each may set
MARK_BYTES = 200
MOST_LOCKS = 64  # that are looked at
_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
POLL_SECONDS = 0.2


class CardBusyError(BttlabError):
    """Another process holds the card."""


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

    def acquire(self, wait: float = 0.0) -> None:
        """Take the lock, if this process does not have it; an older mark goes.

        Parameters
        ----------
        wait : float
            Seconds to wait at most.

        Raises
        ------
        CardBusyError
            If another process holds the lock for that long.
        """
        if self._descriptor is None:
            self._descriptor = self._locked(wait)
        os.ftruncate(self._descriptor, 0)

    def mark_hung(self) -> None:
        """Mark the card: a kernel did not end. The mark stays until somebody takes the lock again."""
        if self._descriptor is not None:
            since = time.strftime("%Y-%m-%d %H:%M:%S")
            os.pwrite(self._descriptor, f"{process_in_words(os.getpid())} at {since}".encode(), 0)

    def release(self) -> None:
        """Give the lock back."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

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


def hung_marks(folder: Path | None = None) -> dict[Path, str]:
    """Return the lock files of root's and this user's that say that a kernel did not end, and whose it was."""
    marks = {}
    for path in itertools.islice(Path(folder or lock_folder()).glob("bttlab-*.lock"), MOST_LOCKS):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            status = os.fstat(descriptor)
            if _is_lock(status) and status.st_uid in (0, os.geteuid()) and status.st_size:
                marks[path] = os.pread(descriptor, MARK_BYTES, 0).decode(errors="replace")
        finally:
            os.close(descriptor)
    return dict(sorted(marks.items()))


def _holder(descriptor: int) -> str:
    """Return the process that holds a lock, in words."""
    listed = [pid for pid in holders(os.fstat(descriptor)) or () if pid > 0]
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
