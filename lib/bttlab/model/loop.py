"""Run training steps in order and report each to a callback.

A step is the smallest unit between two stops: samples for a card, a batch for a method, steps between two readings of a
GPU's clock.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np

from bttlab.model.trainer import NumericalFault

LARGEST_CHUNK = 32  # samples
CHUNK_SECONDS = 0.25

Piece = TypeVar("Piece")


def train_pieces(
    pieces: Iterable[Piece],
    step: Callable[[Piece], np.ndarray],
    trained: Callable[[Piece, np.ndarray, float], None],
    may_go_on: Callable[[], bool] = lambda: True,
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Train on pieces of work until there are none.

    Parameters
    ----------
    pieces : iterable
        The next piece is taken after the one before is trained on and reported.
    step : callable
        Trains on a piece and returns the losses, float32 of shape (n,).
    trained : callable
        Called with the piece, its losses, and the seconds of choosing and training on it; its own time counts nowhere.
    may_go_on : callable
        Called before each piece; it may wait, raise to end the training, or return False.
    clock : callable
        Returns seconds.

    Raises
    ------
    NumericalFault
        Of `step`, after `trained` has got the losses of the samples before it.
    """
    each = iter(pieces)
    while may_go_on():
        begin = clock()
        piece = next(each, None)
        if piece is None:
            return
        try:
            losses, fault = step(piece), None
        except NumericalFault as error:
            losses, fault = error.losses, error
        trained(piece, losses, clock() - begin)
        if fault is not None:
            raise fault


def chunks(start: int, stop: int) -> Iterator[slice]:
    """Yield consecutive slices of `start` to `stop`, each of about a quarter second's work and at most 32 samples.

    The caller does the work of a slice before it takes the next one: the time in between gives the pace.
    """
    size = 1
    while start < stop:
        end = min(start + size, stop)
        begin = time.perf_counter()
        yield slice(start, end)
        pace = (end - start) / max(time.perf_counter() - begin, 1e-9)
        start, size = end, max(1, min(LARGEST_CHUNK, 4 * size, int(pace * CHUNK_SECONDS)))
