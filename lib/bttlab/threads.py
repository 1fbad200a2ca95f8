"""A thread class that survives an interrupt of `join`."""

import math
import threading
import time
from typing import Any

LOOK_SECONDS = 0.2  # between two looks for a signal


class Thread(threading.Thread):
    """`threading.Thread` with a `join` that may be interrupted.

    CPython 3.11 marks a thread as ended when Ctrl-C interrupts `join` (python/cpython, issue 90882): the next join
    returns at once, and `is_alive` is false while the thread runs. And a signal that comes just before a lock is
    waited for, or in another thread, does not end that wait, so waits are short here.
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
        end = math.inf if timeout is None else time.monotonic() + timeout
        while not self._over.wait(min(LOOK_SECONDS, max(0.0, end - time.monotonic()))):
            if time.monotonic() >= end:
                return
        super().join()
