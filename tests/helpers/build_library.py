"""Libraries and programs that tests compile: each once for all of pytest's workers, and again if a source changed."""

import fcntl
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from conftest import ROOT

SOURCES = ROOT / "hls_src"
SUFFIXES = (".cpp", ".h")
COMPILER = os.environ.get("CXX") or "g++"
folder = Path(tempfile.gettempdir())  # conftest.py names one that all workers share


def library(source: Path, *flags: str) -> Path:
    """Compile a source with those of `hls_src`, and return the shared library, or the program without `-shared`."""
    command = [COMPILER, *flags, f"-I{SOURCES}", str(source), "-o"]
    beside = (path for path in source.parent.iterdir() if path.suffix in SUFFIXES)
    how = repr((COMPILER, flags))
    return kept(source.stem, how, lambda part: subprocess.run([*command, str(part)], check=True), *beside)


def kept(name: str, how: str, make: Callable[[Path], object], *sources: Path) -> Path:
    """Return the file that `make` writes from `sources` and those of `hls_src`, unless it is there; `how` tells it from
    others of this name.
    """
    digest = hashlib.sha256(how.encode())
    for path in sorted({*sources, *(path for path in SOURCES.rglob("*") if path.suffix in SUFFIXES)}):
        digest.update(path.read_bytes())
    made = folder / f"{name}-{digest.hexdigest()[:16]}.so"
    with made.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.is_file():
            part = made.with_suffix(".part")
            make(part)
            part.rename(made)
    return made
