"""Contenders take turns on the same work in one process, so that a busy machine hits all of them."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

HOW = "time.perf_counter, contenders in turn, median and quartiles over the rounds"
TURN_SECONDS = 0.01  # that a turn lasts at least: a clock and a scheduler disturb shorter ones
REST_SECONDS = 0.02  # before a turn: PyTorch's threads wait busily for some milliseconds after their last work


@dataclass(frozen=True)
class Spread:
    """A figure over the rounds."""

    median: float
    lower_quartile: float
    upper_quartile: float


def interleave(
    contenders: Mapping[str, Callable[[], float | None]], rounds: int, pieces: int = 1
) -> dict[str, np.ndarray]:
    """Let contenders take turns and return the seconds per piece of each turn, shape (rounds,).

    Each contender does `pieces` pieces of work a turn; the first turn of each is not counted. One that also does other
    things returns the seconds that the work took.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds + 1):
        for name, work in contenders.items():
            time.sleep(REST_SECONDS)
            start = time.perf_counter()
            spent = work()
            if turn:
                seconds[name].append((time.perf_counter() - start if spent is None else spent) / pieces)
    return {name: np.array(values) for name, values in seconds.items()}


def repeated(work: Callable[[], object]) -> Callable[[], float]:
    """Return a contender that repeats short work until a turn lasts `TURN_SECONDS`, and says what one piece took.

    The first piece of a turn is not counted: it finds caches and allocator as the contender before left them.
    """
    pieces = 1

    def turn() -> float:
        nonlocal pieces
        work()
        start = time.perf_counter()
        for _ in range(pieces):
            work()
        spent = (time.perf_counter() - start) / pieces
        pieces = max(pieces, round(TURN_SECONDS / spent))
        return spent

    work()  # what is set up or compiled at first use tells nothing of how often to repeat
    return turn


def second_time(work: Callable[[], object]) -> Callable[[], float]:
    """Return a contender that does its work twice a turn, and says what the second time took.

    The first time finds the caches as the contender before left them; a training finds its own there.
    """

    def turn() -> float:
        work()
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return turn


def spread(values: np.ndarray) -> Spread:
    """Return median and quartiles of the rounds."""
    lower, median, upper = np.percentile(values, [25, 50, 75])
    return Spread(float(median), float(lower), float(upper))


@contextmanager
def threads_of_torch(count: int) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
