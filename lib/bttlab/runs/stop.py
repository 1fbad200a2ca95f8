"""Stop a run between two samples on Ctrl-C, SIGTERM or the end of its terminal."""

import signal
import threading
import time
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PATIENCE_SECONDS = 3.0  # after which another signal ends a run that does not stop


class StopRequested(Exception):
    """Raised between two samples if the user stopped the run."""


class StopSignals:
    """Context that records SIGINT, SIGTERM and SIGHUP instead of ending the process.

    Another signal, `PATIENCE_SECONDS` after the first, raises KeyboardInterrupt: the run hangs. A signal that is
    ignored, as SIGHUP under nohup, stays ignored. In a thread other than the main one, which gets no signals, it does
    nothing.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None  # the last one that asked to stop
        self._since = 0.0
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) != signal.SIG_IGN:
                    self._handlers[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler or signal.SIG_DFL)

    def check(self) -> None:
        """Raise StopRequested if a signal came."""
        if self.received is not None:
            raise StopRequested

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.received is None:
            self._since = now
        elif now > self._since + PATIENCE_SECONDS:
            raise KeyboardInterrupt
        self.received = signal.Signals(number)
