"""Write a file or a folder whole, or not at all."""

import errno
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bttlab.util.errors import BttlabError

_DRAFT = re.compile(r"\..+\.[0-9a-f]+\.draft")


@contextmanager
def draft_file(path: Path, data: bytes, mode: int = 0o666) -> Iterator[Path]:
    """Write a file's next content beside it, synced to disk, for the caller to rename; the draft is gone in the end.

    Raises OSError if it cannot be written, or `path` is a device, a pipe or a folder.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.draft")
    # In a folder of others too: a name that nobody can guess, and no file or link that is there already.
    with _named(path):
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        with _named(path), open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield draft
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Name the file that could not be written in an OSError: of a full disk it has no name, of a draft the draft's."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


def _check_name(path: Path, option: str) -> None:
    """Raise BttlabError for "-", which an option of many programs takes for standard output."""
    if option and str(path) == "-":
        raise BttlabError(f"{option} -: it is written to a file, not to standard output; give the name of one")


def write_file(path: Path, data: bytes | str, option: str = "") -> None:
    """Write a file atomically. A link of that name is replaced, not followed.

    Raises OSError if the file cannot be written; BttlabError if an option such as "--csv" names it.
    """
    _check_name(path, option)
    try:
        with draft_file(path, data.encode() if isinstance(data, str) else data) as draft:
            draft.replace(path)
    except OSError as error:
        if not option:
            raise
        raise BttlabError(f"{path} cannot be written ({error.strerror}); give another file with {option}") from None


def write_new_file(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Write a new file atomically.

    Raises FileExistsError if there is a file or link of that name, which stays; OSError if it cannot be written.
    """
    with draft_file(path, data, mode) as draft:
        try:
            os.link(draft, path)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
                raise
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))  # a file system without hard links
            draft.replace(path)


def check_output(path: Path, option: str) -> None:
    """Check, before hours of work, that `write_file` can write the file that an option names; make its folder.

    Raises BttlabError.
    """
    _check_name(path, option)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft_file(path, b""):
            pass
    except OSError as error:
        raise BttlabError(f"{path} cannot be written ({error.strerror}); give another file with {option}") from None


def write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a new folder atomically, with files by relative path.

    Until it gets its name, it lies beside, in a folder that nobody else can enter. Raises OSError if it cannot be made;
    FileExistsError if there is one of that name that is not empty.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", suffix=".draft", dir=folder.parent) as private:
        draft = Path(private) / folder.name
        draft.mkdir()
        for name, data in files.items():
            (draft / name).parent.mkdir(parents=True, exist_ok=True)
            with _named(folder / name), open(draft / name, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        try:
            draft.rename(folder)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.ENOTDIR):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder)) from None
            raise


def append_line(path: Path, line: str) -> None:
    """Append a line to a file atomically, and sync it to disk.

    Raises OSError if it cannot be written, or the file is a link.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, 0o666), "ab") as file:
        size = os.fstat(file.fileno()).st_size
        try:
            file.write(line.encode(errors="surrogateescape"))
            file.flush()
            os.fsync(file.fileno())
        except OSError:
            os.ftruncate(file.fileno(), size)
            raise
    if size == 0:
        sync_folder(path.parent)


def cut_torn_line(path: Path) -> int:
    """Remove what follows the last whole line of a file, which a full disk or a power failure leaves.

    Returns the number of bytes removed; 0 if there is no such file. Raises OSError if it cannot be written, or is a
    link.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    with _named(path), open(descriptor, "r+b") as file:
        data = file.read()
        end = data.rfind(b"\n") + 1
        if end < len(data):
            file.truncate(end)
            os.fsync(file.fileno())
    return len(data) - end


def is_draft(path: Path) -> bool:
    """Return True if a file is a draft that a crash in the middle of `draft_file` left."""
    return _DRAFT.fullmatch(path.name) is not None


def sync_folder(folder: Path) -> None:
    """Make renames in a folder last through a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
