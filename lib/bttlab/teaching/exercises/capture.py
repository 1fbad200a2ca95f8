"""Catch what is written to stderr while an answer is judged: nbgrader gives no points to a cell with stderr."""

import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

STDERR = 2  # file descriptor: libraries in C and child processes write to it without Python's sys.stderr


@contextmanager
def caught_stderr() -> Iterator[Callable[[], str]]:
    """Divert stderr of Python, of C code and of child processes; yield a function that returns the text so far.

    Warnings, log handlers, progress bars and prints are caught, also by streams that were opened before. A line that
    was rewritten with carriage returns is returned as it last was.
    """
    streams = {id(stream): stream for stream in (sys.stderr, sys.__stderr__) if stream is not None}.values()
    for stream in streams:
        stream.flush()
    before = os.dup(STDERR)
    # A warning of one place is shown again in each block, though Python shows it once.
    with tempfile.TemporaryFile() as file, warnings.catch_warnings():

        def write(text: str) -> int:
            os.write(file.fileno(), text.encode(errors="replace"))
            return len(text)

        def text() -> str:
            for stream in streams:
                stream.flush()
            size = os.fstat(file.fileno()).st_size
            lines = os.pread(file.fileno(), size, 0).decode(errors="replace").replace("\r\n", "\n").split("\n")
            return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines).strip("\n")

        changed = []
        os.dup2(file.fileno(), STDERR)
        try:
            for stream in streams:
                with suppress(AttributeError):  # a file of CPython: it writes to the file descriptor
                    stream.write = write  # a notebook's stream sends messages instead
                    changed.append(stream)
            yield text
        finally:
            for stream in streams:
                stream.flush()
            for stream in changed:
                del stream.write
            os.dup2(before, STDERR)
            os.close(before)
