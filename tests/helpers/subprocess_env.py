"""The environment for a Python process that is to import what this one does."""

import os
import sys


def environment(**more: str) -> dict[str, str]:
    """Return this process's environment with its import path, and `more`."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | more
