"""Starting Python processes in a folder that may be anybody's."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

SAFE_PATH = "PYTHONSAFEPATH"  # a process that has it does not import what lies in the folder that it starts in


@contextmanager
def safe_path() -> Iterator[None]:
    """Have the Python processes that start meanwhile, as `multiprocessing` starts them, import from packages alone."""
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        os.environ.pop(SAFE_PATH) if before is None else os.environ.update({SAFE_PATH: before})
