"""Locks of files and folders. A folder is locked by a file in it of mode 0600: readers could lock the folder itself."""

import errno
import fcntl
import os
import pwd
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bttlab.util.errors import BttlabError

CHANGE_SECONDS = 60.0
LOCK_FILE = ".lock"
_FIELDS = "hhqqi4x"  # struct flock of 64-bit Linux: type, whence, start, length, process
_WHOLE_FILE = struct.pack(_FIELDS, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


class FolderBusyError(Exception):
    """Another process holds the folder."""


@contextmanager
def held(folder: Path) -> Iterator[int]:
    """Hold a folder, until the process ends at the latest; gives the descriptor of its lock file.

    Raises
    ------
    FolderBusyError
        If another process, or another part of this one, holds it.
    OSError
        If the folder has no lock file that is this user's to open, nor can get one.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    path = Path(folder) / LOCK_FILE
    descriptor = os.open(path, flags, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no lock file", str(path))
        try:
            # Of this open file, not of the process: it holds between two parts of one process as well.
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _WHOLE_FILE)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):  # others: a file system without locks
                raise FolderBusyError(str(folder)) from None
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def changing(folder: Path) -> Iterator[None]:
    """Read, change and write a file of a folder while no other process does; wait for others.

    Raises
    ------
    BttlabError
        If another process takes longer than CHANGE_SECONDS.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        end = time.monotonic() + CHANGE_SECONDS
        while not try_lock(descriptor):
            if time.monotonic() > end:
                raise BttlabError(f"another process has been changing files in {folder} for a minute; try again later")
            time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)


def is_held(folder: Path) -> bool:
    """Return whether a process holds a folder; asking takes no lock."""
    path = Path(folder) / LOCK_FILE
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except PermissionError:
        return _is_listed(path)
    except OSError:
        return False
    try:
        answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _WHOLE_FILE)
        return struct.unpack(_FIELDS, answer)[0] != fcntl.F_UNLCK
    except OSError:  # a file system without locks: who knows
        return True
    finally:
        os.close(descriptor)


def try_lock(descriptor: int) -> bool:
    """Lock an open file, without waiting; False if another process has it. `holders` lists this process then."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def process_in_words(pid: int) -> str:
    """Return a process's number and user as text."""
    try:
        user = os.stat(f"/proc/{pid}").st_uid
        return f"process {pid} of user {pwd.getpwuid(user).pw_name}"
    except OSError:
        return f"process {pid}"
    except KeyError:
        return f"process {pid} of user {user}"


def holders(status: os.stat_result) -> list[int] | None:
    """Return the processes that hold a lock of a file, as the system lists them to every user; None if it does not.

    Parameters
    ----------
    status : os.stat_result
        Of the file.

    Returns
    -------
    list of int or None
        -1 for a lock that is an open file's.
    """
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    try:
        lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        return None
    return [int(line[4]) for line in lines if line[5:6] == [place]]  # those that wait have "->" before


def _is_listed(path: Path) -> bool:
    try:
        listed = holders(path.lstat())
    except OSError:
        return False
    return listed is None or bool(listed)
