"""Read files that may be somebody else's: regular ones alone, up to a size, nested up to a depth.

A pipe would be waited for, and a file of a few kilobytes, or one with holes, would fill the memory.
"""

import errno
import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from bttlab.util.errors import BttlabError

MB = 1_000_000
MOST_BYTES = 1000 * MB  # of a file whose lines or tensors are many
MOST_OF_SETTINGS = 4 * MB  # of a file of settings, or a record
MOST_OF_TOML = 1 * MB
MOST_PARTS = 16  # of a dotted key in TOML, each of which is a table
_DOTTED = re.compile(r"""(?:(?:(?<![\w-])[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){16}""")


@contextmanager
def open_regular(path: str | Path, most: int = MOST_BYTES, pipes: bool = False) -> Iterator[BinaryIO]:
    """Open a regular file of at most `most` bytes to read it; with `pipes` a pipe that has a writer, too.

    Raises OSError if it is another kind of file or larger, or cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe is not waited for
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if pipes and stat.S_ISFIFO(status.st_mode):
            os.set_blocking(descriptor, True)
        elif not stat.S_ISREG(status.st_mode):
            code = errno.EISDIR if stat.S_ISDIR(status.st_mode) else errno.EINVAL
            text = "it is a folder" if code == errno.EISDIR else "it is a pipe or a device, not a regular file"
            raise OSError(code, text, str(path))
        if status.st_size > most:
            text = f"it has {status.st_size / MB:,.1f} MB, and such a file has at most {most // MB:,} MB"
            raise OSError(errno.EFBIG, text, str(path))
        yield file


def read_bytes(path: str | Path, most: int = MOST_BYTES) -> bytes:
    """Return a file's content; errors as of `open_regular`."""
    with open_regular(path, most) as file:
        return file.read()


def read_text(
    path: str | Path,
    error: type[BttlabError] = BttlabError,
    way_out: str = "",
    most: int = MOST_BYTES,
    pipes: bool = False,
) -> str:
    """Return a file's text; raise `error` if it cannot be read, or is not UTF-8.

    Other parameters are those of `open_regular`.
    """
    try:
        with open_regular(path, most, pipes) as file:
            return file.read().decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        line = fault.object[: fault.start].count(b"\n") + 1
        raise error(f"{path}, line {line}: not UTF-8 text; save the file as UTF-8") from None
    except OSError as fault:
        raise error(f"{path} cannot be read ({fault.strerror}){way_out}") from None


def lines_of(text: str) -> list[str]:
    """Return the lines of a text, which end with LF, CR or both.

    `str.splitlines` also ends a line at characters that may be in a sentence, such as U+2028 or a form feed.
    """
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON; ValueError if it has a key twice, of which Python keeps the last without a word."""
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} occurs several times")
    return found


def parse_json(text: str | bytes, pairs: Callable[[list[tuple[str, Any]]], Any] = unique_keys) -> Any:
    """Return the value of JSON; ValueError if it is none, has a key twice, or is nested deeper than Python reads.

    `pairs` is `object_pairs_hook` of `json.loads`.
    """
    try:
        return json.loads(text, object_pairs_hook=pairs)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_toml(path: str | Path) -> dict[str, Any]:
    """Return a TOML file of settings; BttlabError if it cannot be read, or is none."""
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        import tomli as tomllib
    text = read_text(Path(path).expanduser(), most=MOST_OF_TOML)
    if _DOTTED.search(text):
        raise BttlabError(f"{path} has a key of more than {MOST_PARTS} parts; no settings are nested so deeply")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise BttlabError(f"{path} is no TOML: {error}") from None
