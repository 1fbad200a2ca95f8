"""One process at a time in a folder: a lock in a file of its own, which only the folder's user can open.

A lock on the folder itself would be there for everybody to take who may read it.
"""

import errno
import fcntl
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK_FILE = ".lock"
_FIELDS = "hhqqi4x"  # struct flock of 64-bit Linux: type, whence, start, length, process


class FolderBusyError(Exception):
    """Another process holds the folder."""


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a folder; the system lets go of it when the process ends, however it ends.

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
            if not lock_part(descriptor):
                raise FolderBusyError(str(folder))
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(descriptor)


def is_held(folder: Path) -> bool:
    """Whether a process holds a folder; asking takes nothing, so nobody is turned away meanwhile."""
    path = Path(folder) / LOCK_FILE
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except PermissionError:
        return _is_listed(path)
    except OSError:
        return False
    try:
        return part_is_held(descriptor)
    except OSError:  # a file system without locks: who knows
        return True
    finally:
        os.close(descriptor)


def lock_part(descriptor: int, start: int = 0, length: int = 0) -> bool:
    """Lock bytes of an open file, without waiting; the system lets go of them when the file is closed.

    Parameters
    ----------
    descriptor : int
        Of a file that is open for writing.
    start, length : int
        Which bytes; length 0 means to the end, however far that is.

    Returns
    -------
    bool
        False if another open file, of any process, has one of them locked.
    """
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _request(fcntl.F_WRLCK, start, length))
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def lock_listed(descriptor: int) -> bool:
    """Lock an open file whole, without waiting, so that `holders` tells whose process has it; False if another has."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock_part(descriptor: int, start: int, length: int) -> None:
    """Let go of bytes that `lock_part` locked."""
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _request(fcntl.F_UNLCK, start, length))


def part_is_held(descriptor: int, start: int = 0, length: int = 0) -> bool:
    """Whether another open file has one of these bytes locked; asking takes nothing."""
    answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _request(fcntl.F_WRLCK, start, length))
    return struct.unpack(_FIELDS, answer)[0] != fcntl.F_UNLCK


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


def _request(kind: int, start: int, length: int) -> bytes:
    return struct.pack(_FIELDS, kind, os.SEEK_SET, start, length, 0)
