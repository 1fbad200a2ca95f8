"""Stop a run between two samples on Ctrl-C, SIGTERM or the end of its terminal."""

import signal
import time
from types import FrameType

from bttlab.util.signals import NotedSignals

PATIENCE_SECONDS = 3.0  # after which another signal ends a run that does not stop


class StopRequested(Exception):
    """Raised between two samples if the user stopped the run."""


class StopSignals(NotedSignals):
    """Context that records SIGINT, SIGTERM and SIGHUP instead of ending the process.

    Another signal, `PATIENCE_SECONDS` after the first, raises KeyboardInterrupt: the run hangs.
    """

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def check(self) -> None:
        """Raise StopRequested if a signal came."""
        if self.received is not None:
            raise StopRequested

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.since is not None and time.monotonic() > self.since + PATIENCE_SECONDS:
            raise KeyboardInterrupt
        super()._note(number, frame)
