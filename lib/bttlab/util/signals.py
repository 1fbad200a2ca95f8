"""Signals that wait until something is done."""

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any


class DeferredSignals:
    """A context that defers calls of the handlers of SIGINT and SIGTERM to its end. Has no effect in other threads."""

    def __init__(self) -> None:
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._received: tuple[int, FrameType | None] | None = None
        self.since: float | None = None

    def __enter__(self) -> "DeferredSignals":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                handler = signal.getsignal(number)
                if callable(handler):
                    self._handlers[number] = handler
                    signal.signal(number, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if self._received is not None:
            self._handlers[self._received[0]](*self._received)

    def forget(self) -> None:
        """Discard the deferred signal."""
        self._received = None

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.since, self._received = self.since or time.monotonic(), (number, frame)
