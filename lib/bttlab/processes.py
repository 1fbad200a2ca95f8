"""Starting Python processes in a folder that may be anybody's."""

import functools
import multiprocessing
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

SAFE_PATH = "PYTHONSAFEPATH"  # a process that has it does not import what lies in the folder that it starts in


@contextmanager
def safe_path() -> Iterator[None]:
    """Have the Python processes that start meanwhile, as `multiprocessing` starts them, import from packages alone."""
    if sys.version_info < (3, 11):
        _start_elsewhere()
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        os.environ.pop(SAFE_PATH) if before is None else os.environ.update({SAFE_PATH: before})


@functools.cache
def _start_elsewhere() -> TemporaryDirectory:
    """For Python 3.10, which has no such variable: processes start in /, and `multiprocessing` leads them back."""
    folder = TemporaryDirectory(prefix="bttlab-python-")
    program = Path(folder.name) / "python"
    program.write_text(f'#!/bin/sh\ncd / && exec {shlex.quote(sys.executable)} "$@"\n')
    program.chmod(0o700)
    multiprocessing.set_executable(str(program))
    return folder
