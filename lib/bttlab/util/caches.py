"""Caches of dependencies in this user's own folder.

torch.compile runs what lies in /tmp/torchinductor_USER, and Dask imports from /tmp/dask-scratch-space, even if another
user made these folders. The environment names other places before either package is imported.
"""

import contextlib
import os
from pathlib import Path

HEADERS = "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"  # torch keeps those in /tmp whatever its cache folder is
SHARED = {"TORCHINDUCTOR_CACHE_DIR": "torchinductor", "DASK_TEMPORARY_DIRECTORY": "dask"}


def use_private_caches() -> None:
    """Point the variables of caches that all users share to this user's own folder, unless they name one already."""
    os.environ[HEADERS] = "0"
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "bttlab" / "libraries"
    with contextlib.suppress(OSError):  # a home that is read-only
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for variable, name in SHARED.items():
            os.environ.setdefault(variable, str(folder / name))
