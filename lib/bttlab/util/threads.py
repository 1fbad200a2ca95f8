"""A thread class that survives an interrupt of `join`."""

import math
import threading
import time
from typing import Any

LOOK_SECONDS = 0.2  # between two looks for a signal


class Thread(threading.Thread):
    """`threading.Thread` with a `join` that may be interrupted.

    It works around three faults of CPython with Ctrl-C:

    - An interrupted `join` marks the thread as ended (3.11; python/cpython, issue 90882). The next `join` returns at
      once, and `is_alive` is false while the thread runs.
    - A signal just before a lock is waited for, or in another thread, does not end the wait.
    - An interrupted `Event.wait` may leave the event's lock locked.

    So `join` waits for short times. A flag tells that the thread is over; the lock only ends a wait early.
    """

    def __init__(self, *arguments: Any, **keywords: Any):
        super().__init__(*arguments, **keywords)
        self._is_over, self._running = False, threading.Lock()
        self._running.acquire()

    def run(self) -> None:
        try:
            super().run()
        finally:
            self._is_over = True
            self._running.release()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end, or for `timeout` seconds."""
        end = math.inf if timeout is None else time.monotonic() + timeout
        while not self._is_over:
            left = end - time.monotonic()
            if left <= 0:
                return
            if self._running.acquire(timeout=min(LOOK_SECONDS, left)):
                self._running.release()
        super().join()
