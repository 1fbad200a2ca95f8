"""Pauses of Python's collection of cyclic garbage, which visits every object there is and finds little."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Iterator[None]:
    """Turn the collection off within this context."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def paused_at_start() -> Iterator[Callable[[], None]]:
    """Turn the collection off until the function that is yielded is called: when a command has started.

    Imports, a corpus and a program are many objects that stay. Until the end of the context, collections do not visit
    what there was at that call.
    """
    was_enabled, is_first = gc.isenabled(), not gc.get_freeze_count()
    gc.disable()

    def started() -> None:
        if was_enabled and is_first:
            gc.freeze()
        if was_enabled:
            gc.enable()

    try:
        yield started
    finally:
        if is_first:
            gc.unfreeze()
        if was_enabled:
            gc.enable()
