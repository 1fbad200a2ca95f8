"""The lock of a real card: one process at a time; `/proc/locks` shows which.

The system releases the lock when the process ends. An emulated card belongs to one process and needs no lock. Every
user may write to /tmp, so a lock file must be a regular file with one name, and is opened without following links.
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

from bttlab.util.errors import BttlabError
from bttlab.util.locks import holders, try_lock

ADMINISTRATORS = Path("/run/bttlab")  # only root can create files there
ANYBODYS = Path("/tmp")  # the same for all users, unlike $TMPDIR
MARK_BYTES = 200
MOST_LOCKS = 64  # lock files that are read
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
        """Take the lock unless this process has it already, and remove the mark of a hung kernel.

        Parameters
        ----------
        wait : float
            Seconds to wait at most.

        Raises
        ------
        CardBusyError
            If another process still holds the lock after that time.
        """
        if self._descriptor is None:
            self._descriptor = self._locked(wait)
        os.ftruncate(self._descriptor, 0)

    def mark_hung(self) -> None:
        """Mark the card as hung: a kernel did not end. The mark stays until a process takes the lock again."""
        if self._descriptor is not None:
            since = time.strftime("%Y-%m-%d %H:%M:%S")
            os.pwrite(self._descriptor, f"{process_in_words(os.getpid())} at {since}".encode(), 0)

    def release(self) -> None:
        """Release the lock."""
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
                        f"{self.card} is in use{waited} by {_holder(descriptor)}: wait for it with --wait SECONDS, "
                        "ask that user or an administrator to end it, or use --device emulated"
                    )
                time.sleep(min(POLL_SECONDS, max(0.0, end - time.monotonic())))
        except BaseException:
            os.close(descriptor)
            raise


@functools.cache
def process_lock(card: str) -> CardLock:
    """Return this process's only lock of a card, shared by all PYNQ objects of that card."""
    return CardLock(card)


def card_name(device: Any) -> str:
    """Return a card's PCIe address if XRT's driver gives it, otherwise its name and tag."""
    path = getattr(device, "sysfs_path", None)
    return Path(path).name if path else f"{device.name}-{device.tag}"


def emulated_name(index: int) -> str:
    """Return the name of an emulated card by its number, from 0."""
    return f"emulated_u50_{index}"


def file_name(card: str, ending: str) -> str:
    """Return the name of a card's file in a folder that all users share."""
    return f"bttlab-{re.sub('[^A-Za-z0-9]+', '-', card)}.{ending}"


def lock_folder() -> Path:
    """Return the folder of all users' locks: /run/bttlab if root owns it and only root can write to it, else /tmp."""
    try:
        status = ADMINISTRATORS.lstat()
    except OSError:
        return ANYBODYS
    own = stat.S_ISDIR(status.st_mode) and status.st_uid == 0 and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return ADMINISTRATORS if own else ANYBODYS


def hung_marks(folder: Path | None = None) -> dict[Path, str]:
    """Return root's and this user's lock files with the mark of a hung kernel, and the process and time in the mark."""
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
    """Return a description of the process that holds a lock."""
    listed = [pid for pid in holders(os.fstat(descriptor)) or () if pid > 0]
    return " and ".join(map(process_in_words, listed)) or "another process"


def process_in_words(pid: int) -> str:
    """Return a process's number and user as text."""
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
    """Open a lock file that every user of the machine may lock; create it if it does not exist."""
    try:
        descriptor = os.open(path, _FLAGS)
    except FileNotFoundError:
        try:
            descriptor = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o666)
            os.fchmod(descriptor, 0o666)  # whatever the umask
        except FileExistsError:  # another process has just created it
            descriptor = os.open(path, _FLAGS)
    if not _is_lock(os.fstat(descriptor)):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a lock file")
    return descriptor


def _is_lock(status: os.stat_result) -> bool:
    """Return True for a regular file with one name."""
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1


def _fault(path: Path, error: OSError) -> str:
    """Return why a lock file cannot be used, and what to do."""
    try:
        owner = user_name(path.lstat().st_uid)
    except OSError:
        return f"{error.strerror}; ask an administrator to create it (docs/security.md)"
    return f"it belongs to user {owner} ({error.strerror}); ask that user or an administrator to remove it: rm {path}"
