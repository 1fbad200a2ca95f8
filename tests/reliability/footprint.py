"""Footprint of a process: memory, file descriptors, threads, temporary files."""

import ctypes
import gc
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MOST_GROWTH = 20  # MiB


@dataclass(frozen=True)
class Footprint:
    """Footprint of this process.

    Attributes
    ----------
    memory : float
        Resident, in MiB.
    descriptors, threads, files : int
        Without the fonts that matplotlib holds open, of the last 64 threads that drew; threads as the system counts
        them; files in the folder for temporary ones.
    """

    memory: float
    descriptors: int
    threads: int
    files: int

    @classmethod
    def now(cls) -> "Footprint":
        """Measure it, garbage collected and freed memory given back before."""
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        descriptors = sum(not path.endswith(".ttf") for path in _opened())
        counts = (len(os.listdir(folder)) for folder in ("/proc/self/task", tempfile.gettempdir()))
        return cls(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, descriptors, *counts)

    def faults_since(self, before: "Footprint") -> list[str]:
        """Return a line for each thing that there is more of than is allowed."""
        faults = []
        if self.memory - before.memory >= MOST_GROWTH:
            faults.append(f"resident memory grew from {before.memory:.1f} to {self.memory:.1f} MiB")
        for name in ("descriptors", "threads", "files"):
            if getattr(self, name) > getattr(before, name):
                faults.append(f"{name} grew from {getattr(before, name)} to {getattr(self, name)}")
        return faults


def _opened() -> Iterator[str]:
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # another thread has closed it
            yield os.readlink(descriptor)
