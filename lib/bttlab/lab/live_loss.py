"""Draw the loss of a training run while it runs."""

import threading
from functools import partial
from html import escape

import ipywidgets as widgets
import numpy as np
import torch
from IPython.display import HTML, DisplayHandle
from matplotlib.axes import Axes

from bttlab.card import TrainingRun
from bttlab.data import Samples
from bttlab.lab.canvas import LiveFigures
from bttlab.lab.charts import PALETTE, SMOOTHING, new_figure, panel, samples_end, small_style, smooth, thinned
from bttlab.lab.comparison import Savings
from bttlab.lab.frame import Frame
from bttlab.lab.picture import describe, hidden, tile, until_stale
from bttlab.model import NumericalFault, Optimizer, Trainer
from bttlab.util.signals import DeferredSignals

REFRESH_SECONDS = 0.4


def watch(run: TrainingRun, title: str, savings: Savings | None = None) -> np.ndarray:
    """Draw the loss of a training run until it ends, and return its losses.

    The cell waits; interrupting the kernel stops the run, which then has fewer than `run.total` losses.

    Parameters
    ----------
    run : TrainingRun
        Of `overlay.trainer_1.start(...)`.
    title : str
        Of the figure.
    savings : Savings, optional
        Of the same samples: memory and energy beside a GPU are drawn, too, as soon as they are modelled.

    Returns
    -------
    np.ndarray
        Float32, a loss for each sample.

    Raises
    ------
    NumericalFault
        If that ended the run.
    """
    live = None
    try:
        figures = [panel(), panel(), panel()] if savings else [new_figure(4.6, 3.2)]
        loss, *others = (figure.subplots() for figure in figures)
        live, words = LiveFigures(figures), DisplayHandle()
        texts = widgets.HTML()
        frame = Frame([live.widget, texts])
        words.display(HTML())
        live.display(frame, partial(live.close, frame))
        while not run.done:
            with DeferredSignals():  # savefig was seen to turn an interrupt into a ValueError
                _draw(run, title, savings, live, loss, others, words)
                texts.value = hidden(*map(describe, figures))
            run.wait(REFRESH_SECONDS)
    except KeyboardInterrupt:  # also before there is a figure
        run.stop()
        run.join()
    except NumericalFault:
        pass  # raised below, when the figure is drawn
    if live is not None:
        _draw(run, title, savings, live, loss, others, words)
        texts.value = hidden(*map(describe, figures))
        live.keep()
    losses, seconds = run.wait(), run.seconds
    stopped = "" if len(losses) == run.total else f", stopped of {run.total:,}"
    rate = f": {len(losses) / seconds:,.0f} samples/s" if seconds else ""
    print(f"{len(losses):,} samples{stopped} in {seconds:.1f} s of training{rate} (measured)")
    return losses


def watch_trainer(
    trainer: Trainer, samples: Samples, optimizer: Optimizer, learning_rate: float, title: str
) -> np.ndarray:
    """Train in a thread and draw the loss as `watch` does.

    Interrupting the kernel stops the training after the samples that are being trained on; the parameters stay.

    Parameters
    ----------
    trainer : Trainer
        Trains.
    samples : Samples
        In order.
    optimizer : Optimizer
        Update rule.
    learning_rate : float
        Of all samples.
    title : str
        Of the figure.

    Returns
    -------
    np.ndarray
        Float32, a loss for each sample.

    Raises
    ------
    NumericalFault
        If that ends the training.
    """

    def train(part: slice) -> np.ndarray:
        torch.set_num_threads(1)  # of this thread: at batch 1 a second one waits more than it works
        return trainer.train(samples[part], optimizer, learning_rate)

    run = TrainingRun(len(samples), train, threading.Lock())
    run.begin()
    return watch(run, title)


def _draw(run, title, savings, live, loss, others, words) -> None:
    losses, over = run.losses, run.done
    known = savings is not None and (savings.ready or over)
    with live.lock:
        draw_loss(loss, losses, samples_end(len(losses)) if savings else run.total)
        if known:
            savings.draw(*others, len(losses))
        elif savings:
            for axes in others:
                axes.clear()
                axes.set_axis_off()
                axes.text(0.5, 0.5, "being modelled …", transform=axes.transAxes, ha="center", color="0.35")
    tiles, note = savings.tiles(len(losses)) if known else ("", "")
    if savings and len(losses):
        mean = losses[-SMOOTHING:].mean()
        tiles += tile(f"{mean:.2f}", "loss", f"mean of the last {SMOOTHING} of {len(losses):,} samples (measured)")
    html = f"<div><b>{escape(title)}</b>{'' if over else f'; {_left(run)}'}</div>{tiles}<div>{note}</div>"
    words.update(HTML(html if over else until_stale(html)))
    live.draw()


def draw_loss(axes: Axes, losses: np.ndarray, end: float) -> None:
    """Draw one run's loss over its samples, as it is and smoothed, on an axis of `end` samples."""
    axes.clear()
    small_style(axes, f"Loss, mean of {SMOOTHING} (measured)", "samples trained on")
    shown, means = thinned(losses), smooth(losses)
    axes.plot(shown + 1, losses[shown], color=PALETTE[0], alpha=0.22, linewidth=0.6, label="loss of the sample")
    axes.plot(shown + 1, means[shown], color=PALETTE[0], linewidth=2, label=f"mean of {SMOOTHING}")
    top = 1.1 * float(np.quantile(losses, 0.995)) if len(losses) else 1.0
    axes.set(xlim=(0, end), ylim=(0, max(1.0, top)))


def _left(run: TrainingRun) -> str:
    count = len(run.losses)
    return f"{run.seconds / count * (run.total - count):.0f} s left" if count and run.seconds else "beginning"
