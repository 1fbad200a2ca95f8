"""The loop of every training: pieces of work one after the other, and somebody told of each.

A piece is what can be stopped between: samples for a card, a batch for a method, steps between two readings of a GPU's
clock.
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
    """Train on pieces, until there are none or it may not go on.

    Parameters
    ----------
    pieces : iterable
        Asked for the next piece once the one before is done with.
    step : callable
        Trains on a piece and returns the losses, float32 of shape (n,).
    trained : callable
        Gets the piece, its losses, and the seconds that choosing it and training on it took: what counts, shows, scores
        and saves, in no piece's time.
    may_go_on : callable
        Asked before each piece; it may wait, or raise what ends the training.
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

    The caller does the work of a slice before it asks for the next one: that is how its pace is known.
    """
    size = 1
    while start < stop:
        end = min(start + size, stop)
        begin = time.perf_counter()
        yield slice(start, end)
        pace = (end - start) / max(time.perf_counter() - begin, 1e-9)
        start, size = end, max(1, min(LARGEST_CHUNK, 4 * size, int(pace * CHUNK_SECONDS)))
