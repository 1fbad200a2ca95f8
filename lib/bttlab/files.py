"""Reading files that anybody may have made."""

import errno
import os
import stat
from pathlib import Path


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
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no file", str(path))
        if found.st_size > most_bytes:
            raise OSError(errno.EFBIG, f"it has {found.st_size} bytes, more than {most_bytes >> 20} MiB", str(path))
        return file.read(found.st_size)  # no more, should it grow
