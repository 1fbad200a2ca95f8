"""Progress of a run on stderr: a bar with loss and samples per second, and notes."""

import sys
import time
from collections import deque
from collections.abc import Iterable

import numpy as np
from tqdm import tqdm

from bttlab.util.terminal import printable

RECENT = 100  # samples that the bar's loss is the mean of
LOG_SECONDS = 10.0  # between two lines where there is no terminal


class ProgressBar:
    """Progress bar of a run; any object with these methods can replace it."""

    def __init__(self) -> None:
        self._bar: tqdm | None = None
        self._recent: deque[float] = deque(maxlen=RECENT)

    def begin(self, title: str, total: int, done: int = 0) -> None:
        """Begin a bar of `total` samples, of which `done` are done."""
        terminal = sys.stderr.isatty()
        self._recent.clear()
        self._bar = tqdm(
            total=total,
            initial=done,
            desc=printable(title),
            unit=" samples",
            file=sys.stderr if terminal else _Lines(),
            leave=terminal,
            dynamic_ncols=terminal,
            mininterval=0.1 if terminal else LOG_SECONDS,
            delay=0.0 if terminal else LOG_SECONDS,
        )
        self._bar._time = time.monotonic  # not the wall clock, which may be set back
        self._bar.start_t = self._bar.last_print_t = time.monotonic()

    def advance(self, losses: Iterable[float]) -> None:
        """Add the losses of further samples."""
        losses = np.asarray(losses)
        self._recent.extend(losses.tolist())
        if self._recent:
            self._bar.set_postfix(loss=f"{np.mean(self._recent):.3f}", refresh=False)
        self._bar.update(len(losses))

    def end(self) -> None:
        """Close the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def note(self, text: str) -> None:
        """Write a note on a line of its own."""
        tqdm.write(printable(f"bttlab: {text}"), file=sys.stderr)


class NoProgress(ProgressBar):
    """Shows nothing."""

    def begin(self, title: str, total: int, done: int = 0) -> None: ...

    def advance(self, losses: Iterable[float]) -> None: ...

    def end(self) -> None: ...

    def note(self, text: str) -> None: ...


class _Lines:
    """Writes each state of a tqdm bar as a line, for logs."""

    def write(self, text: str) -> None:
        if text.strip():
            sys.stderr.write(f"{text.strip()}\n")

    def flush(self) -> None:
        sys.stderr.flush()
