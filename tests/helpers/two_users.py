"""Another user of the same machine, as the tests need one: uid 65534, who owns nothing."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import bttlab

NOBODY = 65534


@cache
def interpreter_of_nobody() -> str | None:
    """A Python of this version that this user may run as that one; None where there is none."""
    for place in (sys.executable, *sorted(Path("/usr/bin").glob("python3*"))):
        test = f"import sys, distributed; assert sys.version_info[:2] == {sys.version_info[:2]}"
        try:
            done = subprocess.run([place, "-c", test], env=environment(), capture_output=True, cwd="/", **_nobody())
        except (OSError, ValueError):
            continue
        if done.returncode == 0:
            return str(place)
    return None


def _nobody() -> dict:
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []}


@contextmanager
def shared_folder(mode: int = 0o1777) -> Iterator[Path]:
    """A folder that every user reaches, with the mode of /tmp; pytest's own are one user's."""
    folder = Path(tempfile.mkdtemp(prefix="bttlab-shared-", dir="/tmp"))
    try:
        folder.chmod(mode)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def start_as_nobody(script: str, *arguments: object) -> subprocess.Popen:
    """Start a Python script as that user; as this one where there is no other to be had."""
    other = os.geteuid() == 0 and interpreter_of_nobody()
    return subprocess.Popen(
        [other or sys.executable, "-c", script, *map(str, arguments)],
        cwd="/",
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **(_nobody() if other else {}),
    )


def run_as_nobody(script: str, *arguments: object) -> str:
    """Run a Python script to its end as that user, and return what it says."""
    process = start_as_nobody(script, *arguments)
    said, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return said.strip()


def environment(**values: str) -> dict[str, str]:
    """Variables with which a process finds the same packages, and nothing of this user's."""
    packages = [folder for folder in sys.path if "-packages" in folder]
    path = os.pathsep.join([str(Path(bttlab.__file__).parents[1]), *packages])
    return {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PYTHONPATH": path} | values
