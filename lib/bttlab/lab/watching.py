"""Watching one training run to its end: the loss curve grows while the kernel works."""

import math
import time
from typing import Protocol

import numpy as np
from IPython.display import DisplayHandle, Image

from bttlab.lab.charts import loss_figure, to_png

REFRESH_SECONDS = 0.4


class Watchable(Protocol):
    """A run that goes on by itself, such as `bttlab.card.TrainingRun`."""

    total: int

    @property
    def losses(self) -> np.ndarray:
        """Losses so far."""

    @property
    def done(self) -> bool:
        """Whether it has ended."""

    def stop(self) -> None:
        """End it soon, at a sample boundary."""

    def wait(self, timeout: float | None = None) -> np.ndarray:
        """Wait for the end, at most `timeout` seconds, and return the losses."""


def watch(run: Watchable, title: str, seconds: float = math.inf) -> np.ndarray:
    """Draw a run's loss until it ends; the cell waits with it, and interrupting the kernel stops the run.

    Parameters
    ----------
    run : Watchable
        From `overlay.trainer_1.start(…)`, for instance.
    title : str
        Of the figure; the time left is added.
    seconds : float
        Stop it after so many.

    Returns
    -------
    ndarray of float32
        The losses; fewer than `run.total` if it was stopped.

    Raises
    ------
    bttlab.model.NumericalFault
        If that ended the run.
    """
    handle = DisplayHandle()
    handle.display(_image(run, title))
    begin = time.perf_counter()
    try:
        while not run.done:
            left = begin + seconds - time.perf_counter()
            if left <= 0:
                run.stop()
            run.wait(min(REFRESH_SECONDS, max(left, 0.01)))
            handle.update(_image(run, f"{title}; {_left(run, time.perf_counter() - begin, seconds)}"))
    except KeyboardInterrupt:
        run.stop()
    finally:
        took = time.perf_counter() - begin
        handle.update(_image(run, title))
    losses = run.wait()
    stopped = "" if len(losses) == run.total else f", stopped of {run.total:,}"
    print(f"{len(losses):,} samples{stopped} in {took:.1f} s: {len(losses) / took:,.0f} samples/s (measured)")
    return losses


def _left(run: Watchable, took: float, most: float) -> str:
    """How long it will still take: until all samples are done, or the time is over."""
    count = len(run.losses)
    left = min(took / count * (run.total - count) if count else math.inf, most - took)
    return f"{max(0, left):.0f} s left" if left < math.inf else "beginning"


def _image(run: Watchable, title: str) -> Image:
    figure = loss_figure(run.losses, title, run.total)
    width, _ = figure.get_size_inches() * figure.dpi
    return Image(to_png(figure, scale=2), width=int(width))
