"""Reading files that anybody may have made, and writing files that outlive a crash."""

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bttlab.util.errors import BttlabError

MOST_SETTINGS = 1 << 16  # bytes
_DRAFT = re.compile(r"\..+\.[0-9a-f]+\.draft")


def read_regular(path: str | Path, most_bytes: int) -> bytes:
    """Return the content of a file that is one, and not larger than is sensible.

    Parameters
    ----------
    path : path
    most_bytes : int

    Raises
    ------
    OSError
        If it cannot be read, is no regular file (opening a pipe would wait for its other end), or is larger.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except ValueError as error:  # a name that no file can have
        raise OSError(errno.EINVAL, str(error), str(path)) from None
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is no file", str(path))
        if status.st_size > most_bytes:
            raise OSError(errno.EFBIG, f"it has {status.st_size} bytes, more than {most_bytes >> 20} MiB", str(path))
        return file.read(status.st_size)  # no more, should it grow


def read_toml(path: str | Path) -> dict[str, Any]:
    """Return a TOML file of settings; ValueError or RecursionError if it is none, else errors of `read_regular`."""
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        import tomli as tomllib
    return tomllib.loads(read_regular(path, MOST_SETTINGS).decode())


def writable_by_others(path: str | Path, owned: bool = False) -> Path | None:
    """Return what lets every user of the machine change a file: it, or a folder on the way to it; None if nothing does.

    A folder in which only owners may remove names, as /tmp, does not count.

    Parameters
    ----------
    path : path
        It need not be there yet.
    owned : bool
        Whether what lies on the way must be root's or this user's, too.
    """
    ways = [Path(way) for way in (os.path.abspath(path), os.path.realpath(path))]
    for place in dict.fromkeys(place for way in ways for place in (way, *way.parents)):
        try:
            status = place.stat()
        except FileNotFoundError:
            continue
        sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
        if status.st_mode & stat.S_IWOTH and not sticky:
            return place
        if owned and status.st_uid not in (0, os.geteuid()):
            return place
    return None


@contextmanager
def written_draft(path: Path, data: bytes) -> Iterator[Path]:
    """Write a file's next content beside it, safe on disk, for the caller to rename; it is gone in the end.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.draft")
    # In a folder of others too: a name that nobody can guess, and no file or link that is there already.
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield draft
    finally:
        draft.unlink(missing_ok=True)


def replace_whole(path: Path, data: bytes | str) -> None:
    """Give a file its next content, or leave what is there; errors as of `written_draft`."""
    with written_draft(path, data.encode() if isinstance(data, str) else data) as draft:
        draft.replace(path)


def check_output(path: Path, option: str) -> None:
    """Check, before hours of work, that a command can write the file that an option names; it stays as it is.

    Raises
    ------
    BttlabError
    """
    try:
        if path.is_dir():
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        with written_draft(path, b""):
            pass
    except OSError as error:
        raise _unwritable(path, option, error) from None


def write_output(path: Path, data: bytes | str, option: str) -> None:
    """Write the file that an option names, whole or not at all; errors are those of `check_output`."""
    try:
        replace_whole(path, data)
    except OSError as error:
        raise _unwritable(path, option, error) from None


def _unwritable(path: Path, option: str, error: OSError) -> BttlabError:
    return BttlabError(f"{path} cannot be written ({error.strerror}); give another file with {option}")


def is_draft(path: Path) -> bool:
    """Return True if a file is a draft that a crash in the middle of `written_draft` left."""
    return _DRAFT.fullmatch(path.name) is not None


def sync_folder(folder: Path) -> None:
    """Make renames in a folder last through a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
