"""Draw the loss of a training run while it runs."""

import math
import time

import numpy as np
from IPython.display import HTML, DisplayHandle, display
from matplotlib.axes import Axes

from bttlab.card import TrainingRun
from bttlab.lab.canvas import LiveFigures
from bttlab.lab.cells import close_with_cell
from bttlab.lab.charts import PALETTE, SMOOTHING, new_figure, panel, samples_end, small_style, smooth, thinned
from bttlab.lab.comparison import Savings
from bttlab.lab.picture import describe, sentences, until_stale

REFRESH_SECONDS = 0.4


def watch(run: TrainingRun, title: str, seconds: float = math.inf, savings: Savings | None = None) -> np.ndarray:
    """Draw a run's loss until it ends. The cell waits; interrupting the kernel stops the run.

    Parameters
    ----------
    run : bttlab.card.TrainingRun
        From `overlay.trainer_1.start(…)`.
    title : str
        Stands above the figure, with the time left.
    seconds : float
        Stop it after this time.
    savings : Savings, optional
        Of the same samples: memory and energy beside a GPU are drawn, too.

    Returns
    -------
    ndarray of float32
        The losses; fewer than `run.total` if it was stopped.

    Raises
    ------
    bttlab.model.NumericalFault
        If that ended the run.
    """
    figures = [panel(), panel(), panel()] if savings else [new_figure(4.6, 3.2)]
    *others, loss = (figure.subplots() for figure in figures)
    live, words = LiveFigures(figures), DisplayHandle()

    def draw(left: str = "") -> None:
        losses = run.losses
        with live.lock:
            draw_loss(loss, losses, samples_end(len(losses)) if savings else run.total)
            if savings:
                savings.draw(*others, len(losses))
        said = sentences([f"{title}{left}.", *(savings.ratios(len(losses)) if savings else [])])
        words.update(HTML(until_stale(said) if left else said))
        live.draw()

    close_with_cell(live.close)
    words.display(HTML())
    display(live.widget)
    live.display()
    begin = time.perf_counter()
    try:
        while not run.done:
            draw(f"; {_left(run, time.perf_counter() - begin, seconds)}")
            left = begin + seconds - time.perf_counter()
            if left <= 0:
                run.stop()
            run.wait(min(REFRESH_SECONDS, max(left, 0.01)))
    except KeyboardInterrupt:
        run.stop()
    finally:
        took = time.perf_counter() - begin
        draw()
        live.keep(describe(*figures))
    losses = run.wait()
    stopped = "" if len(losses) == run.total else f", stopped of {run.total:,}"
    print(f"{len(losses):,} samples{stopped} in {took:.1f} s: {len(losses) / took:,.0f} samples/s (measured)")
    return losses


def draw_loss(axes: Axes, losses: np.ndarray, end: float) -> None:
    """Draw one run's loss over its samples, as it is and smoothed, on an axis of `end` samples."""
    axes.clear()
    small_style(axes, f"Loss, mean of {SMOOTHING} (measured)", "samples trained on")
    shown, means = thinned(losses), smooth(losses)
    axes.plot(shown + 1, losses[shown], color=PALETTE[0], alpha=0.22, linewidth=0.6, label="loss of the sample")
    axes.plot(shown + 1, means[shown], color=PALETTE[0], linewidth=2, label=f"mean of {SMOOTHING}")
    top = 1.1 * float(np.quantile(losses, 0.995)) if len(losses) else 1.0
    axes.set(xlim=(0, end), ylim=(0, max(1.0, top)))


def _left(run: TrainingRun, took: float, most: float) -> str:
    """Return the time left: until all samples are done, or `most` seconds are over."""
    count = len(run.losses)
    left = min(took / count * (run.total - count) if count else math.inf, most - took)
    return f"{max(0, left):.0f} s left" if left < math.inf else "beginning"
