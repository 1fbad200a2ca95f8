"""Stopping at a sample boundary: Ctrl-C and SIGTERM ask, the run loop answers between two chunks."""

import signal
import threading
from types import FrameType


class StopRequested(Exception):
    """The user asked the run to stop; raised at a sample boundary only."""


class StopSignals:
    """A context in which SIGINT and SIGTERM only make a note, however often they come.

    In a thread other than the main one, which gets no signals, it does nothing.

    Attributes
    ----------
    received : signal.Signals or None
        The last signal that asked to stop.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._handlers: dict[signal.Signals, object] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
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
        self.received = signal.Signals(number)
