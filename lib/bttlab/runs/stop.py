"""Stop a run between two samples on Ctrl-C or SIGTERM."""

import signal
import threading
from types import FrameType


class StopRequested(Exception):
    """Raised between two samples if the user stopped the run."""


class StopSignals:
    """Context that records SIGINT and SIGTERM instead of interrupting.

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
