"""Run training steps in order and report each to a callback.

A step is the smallest unit of work that cannot be interrupted: samples on a card, a batch of a method, or training
steps between two readings of a GPU's clock.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from bttlab.model.config import Optimizer
from bttlab.model.trainer import NumericalFault
from bttlab.util.renamed import renamed

if not TYPE_CHECKING:
    __getattr__ = renamed(__name__, {"train_pieces": "train_segments"})

LARGEST_CHUNK = 128  # samples
LARGEST_SUM = 32  # samples of one update whose gradients a card sums up before it adds the sum to the moments
LARGEST_PREDICTED = 512  # samples of a chunk that is not trained on
CHUNK_SECONDS = 0.25

Segment = TypeVar("Segment")


def train_segments(
    segments: Iterable[Segment],
    step: Callable[[Segment], np.ndarray],
    trained: Callable[[Segment, np.ndarray, float], None],
    may_continue: Callable[[], bool] = lambda: True,
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Train on segments in order; each is requested only after the previous one has been trained on and reported.

    `step` trains on a segment and returns the losses, float32 of shape (n,). `trained` gets the segment, its losses,
    and the seconds to request and train on it, without the time of this call. `may_continue` is called before each
    segment; it may wait, raise an error, or return False to end the training.

    Raises NumericalFault of `step`, after `trained` was called with the losses of the samples before the fault.
    """
    each = iter(segments)
    while may_continue():
        begin = clock()
        segment = next(each, None)
        if segment is None:
            return
        try:
            losses, fault = step(segment), None
        except NumericalFault as error:
            losses, fault = error.losses, error
        trained(segment, losses, clock() - begin)
        if fault is not None:
            raise fault


def chunks(
    start: int, stop: int, batch_size: int = 1, before: int = 0, most: int = LARGEST_CHUNK, largest: int = LARGEST_SUM
) -> Iterator[slice]:
    """Yield consecutive slices from `start` to `stop`, each for about a quarter second and at most `most` samples.

    The size follows the time between two requests, in which the caller must train on the slice. If updates have several
    samples, slices end where `sum_end` says, whatever the time: a card ends the sum of gradients with a call. `before`
    is the number of samples of the training before sample 0, `largest` as for `sum_end`.
    """
    size = 1
    while start < stop:
        end = min(start + size, stop)
        if batch_size > 1:
            end, last = min(sum_end(before + start, batch_size, largest) - before, stop), end
            while (further := min(sum_end(before + end, batch_size, largest) - before, stop)) <= last and end < stop:
                end = further
        begin = time.perf_counter()
        yield slice(start, end)
        pace = (end - start) / max(time.perf_counter() - begin, 1e-9)
        start, size = end, max(1, min(most, 4 * size, int(pace * CHUNK_SECONDS)))


def sum_end(sample: int, batch_size: int, largest: int = LARGEST_SUM) -> int:
    """Return where a sum of gradients that begins with a sample of the training ends: with its update at the latest.

    An update of more than `largest` samples has a sum for each as many.
    """
    place = sample % batch_size
    return sample + min(batch_size - place, largest - place % largest)


def ends_sum(samples: np.ndarray, optimizer: Optimizer, largest: int = LARGEST_SUM) -> np.ndarray:
    """Return whether a sum of gradients ends with each of these samples of the training, bool, as `sum_end` says.

    AdamW squares the gradient of each sample, so each is a sum of its own.
    """
    if not optimizer.sums_gradients:
        return np.ones(len(samples), bool)
    after = samples % optimizer.batch_size + 1  # samples of the update up to this one
    return (after == optimizer.batch_size) | (after % largest == 0)
