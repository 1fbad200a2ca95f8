"""A thread class that survives an interrupt of `join`."""

import threading
from typing import Any


class Thread(threading.Thread):
    """`threading.Thread` with a `join` that may be interrupted.

    CPython 3.11 marks a thread as ended when Ctrl-C interrupts `join` (python/cpython, issue 90882): the next join
    returns at once, and `is_alive` is false while the thread runs.
    """

    def __init__(self, *arguments: Any, **keywords: Any):
        super().__init__(*arguments, **keywords)
        self._over = threading.Event()

    def run(self) -> None:
        """Run the target."""
        try:
            super().run()
        finally:
            self._over.set()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end, or for `timeout` seconds."""
        if self._over.wait(timeout):
            super().join()
