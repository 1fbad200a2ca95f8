"""One trial of `bttlab.cost.memory`, in a process of its own: does a batch train within a budget of memory?

The server that trials are forked from imports this module, so that what importing takes is no part of any trial.
"""

import contextlib
import ctypes
import re
import resource
import sys
from dataclasses import replace
from pathlib import Path

import torch

from bttlab.cost.configuration import BROKEN, FITS, TOO_LARGE, FineTuning
from bttlab.cost.training import Run
from bttlab.terminal import say

_SMALLEST = FineTuning(1, 8, 1, 1, 1, 8, sequence_length=4, vocabulary=8)
_M_MMAP_THRESHOLD = -3  # of mallopt(3)
_MAPPED_FROM = 64 * 1024  # bytes

Run(_SMALLEST)  # the first optimizer of a process imports a good deal


def trial(config: FineTuning, budget: int, batch: int) -> None:
    """Take two steps within `budget` bytes and end the process with FITS or TOO_LARGE, or with BROKEN if neither."""
    torch.set_num_threads(1)
    _ask_malloc("mallopt", _M_MMAP_THRESHOLD, _MAPPED_FROM)
    _two_steps(replace(_SMALLEST, architecture=config.architecture), 1)  # what the first run loads is no part of it
    _ask_malloc("malloc_trim", 0)
    limit = _data_bytes() + budget
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    try:
        _two_steps(config, batch)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "alloc" not in str(error):
            say(error)
            sys.exit(BROKEN)
        sys.exit(TOO_LARGE)
    sys.exit(FITS)


def _ask_malloc(name: str, *arguments: int) -> None:
    """Call what leaves less of freed blocks in the heap, where the budget would not see them."""
    with contextlib.suppress(AttributeError, OSError):  # no glibc
        getattr(ctypes.CDLL(None), name)(*arguments)


def _two_steps(config: FineTuning, batch: int) -> None:
    run = Run(config)
    for _ in range(2):  # AdamW's moments are there from the second on
        run.step(run.batch(batch))


def _data_bytes() -> int:
    """What this process has of what RLIMIT_DATA limits."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(re.search(r"^VmData:\s+(\d+) kB", status, re.MULTILINE)[1])
