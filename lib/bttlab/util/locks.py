"""Locks of files and folders. A folder is locked by a file in it of mode 0600: readers could lock the folder itself."""

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
ASKED_SECONDS = 0.5  # that `is_held` of other processes may keep a lock from one that wants it


def folder_lock(folder: Path) -> filelock.FileLock:
    """Return the lock of a folder, a context; filelock.Timeout if another process, or part of this one, has it."""
    return filelock.FileLock(Path(folder) / LOCK_FILE, ASKED_SECONDS, mode=0o600, poll_interval=0.02)


@contextmanager
def changing(folder: Path) -> Iterator[None]:
    """Read, change and write a file of a folder while no other process does; wait for others.

    Raises BttlabError if another process takes longer than CHANGE_SECONDS; OSError if nothing can be written there.
    """
    try:
        with filelock.FileLock(Path(folder) / CHANGE_FILE, CHANGE_SECONDS, mode=0o600, poll_interval=0.02):
            yield
    except filelock.Timeout:
        raise BttlabError(
            f"another process has been changing files in {folder} for a minute; try again later"
        ) from None


def is_held(folder: Path) -> bool:
    """Return whether a process holds a folder."""
    path = Path(folder) / LOCK_FILE
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except PermissionError:
        return holders(path.lstat()) != []
    except OSError:
        return False
    try:
        return not try_lock(descriptor)
    except OSError:  # a file system without locks: nobody knows
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

    A lock that is an open file's has -1.
    """
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    try:
        lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        return None
    return [int(line[4]) for line in lines if line[5:6] == [place]]  # those that wait have "->" before
