"""Shared libraries that tests compile: each once for all of pytest's workers."""

import fcntl
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

from conftest import ROOT

SOURCES = ROOT / "hls_src"
COMPILER = os.environ.get("CXX") or "g++"
folder = Path(tempfile.gettempdir())  # conftest.py names one that all workers share


def library(source: Path, *flags: str) -> Path:
    """Compile a source with those of `hls_src`, unless that is done, and return the shared library."""
    command = [COMPILER, *flags, f"-I{SOURCES}", str(source)]
    digest = hashlib.sha256(repr(command).encode())
    for path in sorted({source, *SOURCES.rglob("*.cpp"), *SOURCES.rglob("*.h")}):
        digest.update(path.read_bytes())
    made = folder / f"{source.stem}-{digest.hexdigest()[:16]}.so"
    with made.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.is_file():
            part = made.with_suffix(".part")
            subprocess.run([*command, "-o", str(part)], check=True)
            part.rename(made)
    return made
