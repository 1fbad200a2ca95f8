"""Versions of packages and the state of the checkout."""

import platform
import subprocess
from functools import cache
from importlib import metadata

import bttlab
from bttlab.runs.record import GitState
from bttlab.util.places import INSTALLED, ROOT

PACKAGES = ("torch", "numpy", "safetensors", "pynq", "dask", "distributed")


@cache
def versions() -> dict[str, str]:
    """Return the versions of bttlab, Python and the packages that may change a run's bits."""
    installed = {"bttlab": bttlab.__version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return installed


@cache
def git_state() -> GitState | None:
    """Return the state of bttlab's checkout; None outside of one."""
    if INSTALLED:
        return None
    try:
        commit = _git("rev-parse", "HEAD")
        return GitState(commit=commit, changed=bool(_git("status", "--porcelain", "--untracked-files=no")))
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
