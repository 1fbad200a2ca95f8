"""Start Python processes safely in a folder of another user; count the processors that this process may use."""

import functools
import multiprocessing
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

CONTROL_GROUP, CONTROL_GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
SAFE_PATH = "PYTHONSAFEPATH"  # keeps a process from importing from the folder that it starts in


@contextmanager
def safe_path() -> Iterator[None]:
    """Keep processes of `multiprocessing` from importing from the current folder."""
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
    """Start processes in /, for Python 3.10, which lacks the variable; `multiprocessing` changes back."""
    folder = TemporaryDirectory(prefix="bttlab-python-")
    program = Path(folder.name) / "python"
    program.write_text(f'#!/bin/sh\ncd / && exec {shlex.quote(sys.executable)} "$@"\n')
    program.chmod(0o700)
    multiprocessing.set_executable(str(program))
    return folder


def usable_processors() -> int:
    """Return how many processors this process may use: by its affinity, and by the quota of its control group."""
    count = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):  # no quota, or cgroup version 1
        group = CONTROL_GROUP.read_text().rpartition("::")[2].strip().lstrip("/")
        quota, period = (CONTROL_GROUPS / group / "cpu.max").read_text().split()
        count = min(count, max(1, int(quota) // int(period)))
    return count
