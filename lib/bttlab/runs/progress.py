"""Progress of a run on stderr: a bar with loss and samples per second, and notes."""

import contextlib
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from bttlab.util.terminal import one_line

RECENT = 100  # samples that the bar's loss is the mean of
LOG_SECONDS = 10.0  # between two lines where there is no terminal
DRAW_SECONDS = 0.1  # between two drawings on a terminal


class ProgressBar:
    """Progress bar of a run; any object with these methods can replace it.

    If stderr has gone, as with the terminal or a closed pipe, nothing more is shown and the run goes on.
    """

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._bar: Progress | None = None
        self._is_gone = False

    def begin(self, title: str, total: int, done: int = 0) -> None:
        """Begin a bar of `total` samples, of which `done` are done; end the one before."""
        self.end()
        self._recent.clear()
        self._title, self._total, self._first, self._done = one_line(title), total, done, done
        self._since = self._drawn = time.monotonic()
        if not self._is_gone and sys.stderr.isatty():
            columns = [TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn()]
            columns += [TextColumn("{task.fields[state]}", markup=False), TimeRemainingColumn()]
            console = Console(file=sys.stderr)
            self._bar = Progress(
                *columns, console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
            )
            with self._writing():
                self._bar.start()
                self._bar.add_task(self._title, total=total, completed=done, state="")

    def advance(self, losses: Iterable[float]) -> None:
        losses = np.asarray(losses)
        self._recent.extend(losses.tolist())
        self._done += len(losses)
        now, seconds = time.monotonic(), DRAW_SECONDS if self._bar else LOG_SECONDS
        if self._is_gone or (now < self._drawn + seconds and not (self._bar and self._done == self._total)):
            return
        self._drawn = now
        loss = f"loss {np.mean(self._recent):.3f}" if self._recent else ""
        state = f"{(self._done - self._first) / max(now - self._since, 1e-9):.1f} samples/s  {loss}"
        with self._writing():
            if self._bar is None:
                print(f"{self._title}: {self._done}/{self._total}  {state}", file=sys.stderr, flush=True)  # noqa: T201
            else:
                self._bar.update(self._bar.task_ids[0], completed=self._done, state=state, refresh=True)

    def end(self) -> None:
        bar, self._bar = self._bar, None
        if bar is not None:
            with self._writing():
                bar.stop()

    def note(self, text: str) -> None:
        line = one_line(f"bttlab: {text}")
        with self._writing():
            if self._is_gone:
                return
            if self._bar is None:
                print(line, file=sys.stderr, flush=True)  # noqa: T201
            else:
                self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError):  # a closed pipe, a terminal that has gone, a closed file
            self._is_gone, self._bar = True, None


class NoProgress(ProgressBar):
    def __init__(self) -> None:
        super().__init__()
        self._is_gone = True
