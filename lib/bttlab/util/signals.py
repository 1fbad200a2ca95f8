"""Signals that wait until something is done."""

import signal
import threading
import time
from types import FrameType
from typing import Any

from typing_extensions import Self


class NotedSignals:
    """A context that notes signals instead of handling them. Has no effect in other threads, which get no signals.

    A signal that is ignored, as SIGHUP under nohup, stays ignored.
    """

    numbers: tuple[signal.Signals, ...] = (signal.SIGINT, signal.SIGTERM)
    left_alone: tuple[Any, ...] = (signal.SIG_IGN,)  # handlers

    def __init__(self) -> None:
        self.received: signal.Signals | None = None  # the last one
        self.since: float | None = None  # the time of the first one
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in self.numbers:
                if signal.getsignal(number) not in self.left_alone:
                    self._handlers[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler or signal.SIG_DFL)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.since, self.received = self.since or time.monotonic(), signal.Signals(number)


class DeferredSignals(NotedSignals):
    """Defers calls of the handlers of SIGINT and SIGTERM to the end of the context."""

    left_alone = (signal.SIG_IGN, signal.SIG_DFL, None)

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        if self.received is not None:
            self._handlers[self.received](self.received, None)

    def forget(self) -> None:
        """Discard the deferred signal."""
        self.received = None
