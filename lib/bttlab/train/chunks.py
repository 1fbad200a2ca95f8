"""Cutting work into chunks that end soon: a run stops, and shows progress, between two of them."""

import time
from collections.abc import Iterator

LARGEST_CHUNK = 32  # samples
CHUNK_SECONDS = 0.25


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
