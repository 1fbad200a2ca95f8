"""Draw the loss of a training run while it runs."""

import math
import time

import numpy as np
from IPython.display import HTML, DisplayHandle

from bttlab.card import TrainingRun
from bttlab.lab.charts import PALETTE, SMOOTHING, loss_figure, smooth, thinned
from bttlab.lab.savings import Savings, panel, panels_html, samples_end, small_style

REFRESH_SECONDS = 0.4


def watch(run: TrainingRun, title: str, seconds: float = math.inf, savings: Savings | None = None) -> np.ndarray:
    """Draw a run's loss until it ends. The cell waits; interrupting the kernel stops the run.

    Parameters
    ----------
    run : bttlab.card.TrainingRun
        From `overlay.trainer_1.start(…)`.
    title : str
        Of the figure; the time left is added.
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
    handle = DisplayHandle()
    handle.display(_draw(run, title, savings))
    begin = time.perf_counter()
    try:
        while not run.done:
            left = begin + seconds - time.perf_counter()
            if left <= 0:
                run.stop()
            run.wait(min(REFRESH_SECONDS, max(left, 0.01)))
            handle.update(_draw(run, f"{title}; {_left(run, time.perf_counter() - begin, seconds)}", savings))
    except KeyboardInterrupt:
        run.stop()
    finally:
        took = time.perf_counter() - begin
        handle.update(_draw(run, title, savings))
    losses = run.wait()
    stopped = "" if len(losses) == run.total else f", stopped of {run.total:,}"
    print(f"{len(losses):,} samples{stopped} in {took:.1f} s: {len(losses) / took:,.0f} samples/s (measured)")
    return losses


def _left(run: TrainingRun, took: float, most: float) -> str:
    """Return the time left: until all samples are done, or `most` seconds are over."""
    count = len(run.losses)
    left = min(took / count * (run.total - count) if count else math.inf, most - took)
    return f"{max(0, left):.0f} s left" if left < math.inf else "beginning"


def _draw(run: TrainingRun, title: str, savings: Savings | None) -> HTML:
    losses = run.losses
    if savings is None:
        return HTML(panels_html([loss_figure(losses, title, run.total)], []))
    figure = panel()
    axes = figure.subplots()
    small_style(axes, f"Loss, mean of {SMOOTHING} (measured)", "samples trained on")
    shown, means = thinned(losses), smooth(losses)
    axes.plot(shown + 1, means[shown], color=PALETTE[0], linewidth=2)
    axes.set(xlim=(0, samples_end(len(losses))), ylim=(0, None))
    lines = [f"{title}.", *savings.ratios(len(losses))]
    return HTML(panels_html([*savings.figures(len(losses)), figure], lines))
