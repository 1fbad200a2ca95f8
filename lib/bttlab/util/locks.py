"""Locks of files and folders. A folder is locked by a file in it of mode 0600: readers could lock the folder itself.

The lock is the system's (flock), which ends with the process. Where a file system has none, such as NFS without its
lock service, a second file stands for it while it is held, with the process's number and host (filelock.SoftFileLock).
"""

import errno
import fcntl
import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import filelock

from bttlab.util.errors import BttlabError

CHANGE_SECONDS = 60.0
LOCK_FILE, CHANGE_FILE = ".lock", ".changes.lock"
HELD = ".held"  # behind a lock file's name: the file that stands for a lock
ASKED_SECONDS = 0.5  # that `is_held` of other processes may keep a lock from one that wants it
WITHOUT_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


def folder_lock(folder: Path) -> filelock.BaseFileLock:
    """Return the lock of a folder, a context; filelock.Timeout if another process, or part of this one, has it.

    Raises OSError if this user cannot lock the folder.
    """
    return _lock(Path(folder) / LOCK_FILE, ASKED_SECONDS)


def _lock(path: Path, seconds: float) -> filelock.BaseFileLock:
    if _has_locks(path):
        return filelock.FileLock(path, seconds, mode=0o600, poll_interval=0.02)
    return filelock.SoftFileLock(f"{path}{HELD}", seconds, mode=0o600, poll_interval=0.02)


def _has_locks(path: Path) -> bool:
    """Return whether the file system of a lock file, which is made if it is missing, has locks."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            raise
        return False
    finally:
        os.close(descriptor)
    return True


def in_use(folder: Path, lock_file: str = LOCK_FILE) -> str:
    """Return who holds a folder, in words, for one that could not lock it."""
    held = Path(folder) / f"{lock_file}{HELD}"
    try:
        pid, host = held.read_text(encoding="utf-8", errors="replace").split()[:2]
    except (OSError, ValueError):
        return "another process"
    return f"process {pid} on {host.partition('?')[0]} (if it has ended, delete {held})"


@contextmanager
def changing(folder: Path) -> Iterator[None]:
    """Read, change and write a file of a folder while no other process does; wait for others.

    Raises BttlabError if another process takes longer than CHANGE_SECONDS; OSError if nothing can be written there.
    """
    try:
        with _lock(Path(folder) / CHANGE_FILE, CHANGE_SECONDS):
            yield
    except filelock.Timeout:
        raise BttlabError(
            f"{in_use(folder, CHANGE_FILE)} has been changing files in {folder} for a minute; try again later"
        ) from None


def is_held(folder: Path) -> bool:
    """Return whether a process holds a folder."""
    path = Path(folder) / LOCK_FILE
    held = path.with_name(f"{LOCK_FILE}{HELD}")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except PermissionError:
        return holders(path.lstat()) != [] or _stands_for_a_lock(held)
    except OSError:
        return False
    try:
        return not try_lock(descriptor)
    except OSError as error:
        return error.errno not in WITHOUT_LOCKS or _stands_for_a_lock(held)
    finally:
        os.close(descriptor)


def _stands_for_a_lock(held: Path) -> bool:
    """Return whether a process holds the lock that a file stands for; one of this host that has ended does not."""
    if not os.path.lexists(held):
        return False
    try:
        with filelock.SoftFileLock(held, 0, mode=0o600):
            return False
    except filelock.Timeout:
        return os.path.lexists(
            held
        )  # filelock 4.1 removes the file of an ended process, and takes the lock if asked again
    except OSError:
        return True


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

    A lock that is an open file's has -1.
    """
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    try:
        lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        return None
    return [int(line[4]) for line in lines if line[5:6] == [place]]  # those that wait have "->" before
