"""Caches of dependencies in a folder that only this user can enter.

torch.compile runs what lies in /tmp/torchinductor_USER, and Dask imports from /tmp/dask-scratch-space, even if
another user made these folders. `use_private_caches` names other places before either package is imported.
"""

import atexit
import os
import shutil
import stat
import tempfile
from pathlib import Path

from bttlab.util.files import writable_by_others
from bttlab.util.terminal import say

HEADERS = "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"  # torch keeps those in /tmp whatever its cache folder is
# Variables of dependencies whose default is in a place that all users share, and of the others, which are moved only
# where the environment names a folder that another user can change.
SHARED = {"TORCHINDUCTOR_CACHE_DIR": "torchinductor", "DASK_TEMPORARY_DIRECTORY": "dask"}
OWN = {
    "TRITON_CACHE_DIR": "triton",
    "MPLCONFIGDIR": "matplotlib",
    "NUMBA_CACHE_DIR": "numba",
    "JUPYTER_RUNTIME_DIR": "jupyter",
}


def use_private_caches() -> None:
    """Point the variables of dependencies' caches to this user's own folder, unless they name one already."""
    os.environ[HEADERS] = "0"
    private: Path | None = None
    for variable, name in (SHARED | OWN).items():
        given = os.environ.get(variable)
        culprit = _culprit(Path(given)) if given else None
        if culprit is None and (given or variable in OWN):
            continue
        if culprit is not None:
            say(f"bttlab: note: {variable} is {given}, not used: {culprit} is no folder, or another user can change it")
        private = private or private_folder()
        (private / name).mkdir(mode=0o700, exist_ok=True)
        os.environ[variable] = str(private / name)


def private_folder() -> Path:
    """Return a folder of mode 0700 in the user's cache; one for this process alone where that cannot be trusted."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    folder = cache / "bttlab" / "libraries"
    culprit = _culprit(folder)
    if culprit is None:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if stat.S_IMODE(folder.stat().st_mode) != 0o700:
                folder.chmod(0o700)
            if _culprit(folder) is None and os.access(folder, os.W_OK | os.X_OK):
                return folder
        except OSError:  # a home that is read-only
            pass
    else:
        say(f"bttlab: note: caches end with this process: {culprit} is no folder, or another user can change it")
    folder = Path(tempfile.mkdtemp(prefix="bttlab-caches-"))
    atexit.register(_remove, folder, os.getpid())
    return folder


def _culprit(folder: Path) -> Path | None:
    """Return what lets another user change a folder, or keeps this one from seeing whether one can."""
    try:
        return writable_by_others(folder, owned=True)
    except OSError:
        return folder


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:  # not in one that was forked from it
        shutil.rmtree(folder, ignore_errors=True)
