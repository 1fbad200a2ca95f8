"""Threads that an interrupt leaves as they are."""

import threading
from typing import Any


class Thread(threading.Thread):
    """A thread as in `threading`, but for an interrupt of who joins it.

    CPython 3.11 takes a thread for ended as soon as Ctrl-C interrupts who joins it (python/cpython, issue 90882): the
    next join returns at once, and `is_alive` is false while it still runs.
    """

    def __init__(self, *arguments: Any, **keywords: Any):
        super().__init__(*arguments, **keywords)
        self._over = threading.Event()

    def run(self) -> None:
        """Do its work."""
        try:
            super().run()
        finally:
            self._over.set()

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, or for so many seconds."""
        if self._over.wait(timeout):
            super().join()
