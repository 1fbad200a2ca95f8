"""Result of a trial."""

import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Outcome:
    """What a trial found.

    Attributes
    ----------
    title : str
        What must hold, in a few words.
    tried : str
        What was done, in a sentence or two.
    attempts : int
    failures : sequence of str
        A line for every attempt in which it did not hold.
    figures : mapping
        By name: a count, a text, or what `bttlab.util.quantities.measured` returns.
    """

    title: str
    tried: str
    attempts: int
    failures: Sequence[str] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)


def attempts(count: int) -> Iterator[int]:
    """Yield the numbers of attempts; after Ctrl-C no more, so that a trial tells what it has found by then."""
    asked = []
    before = signal.signal(signal.SIGINT, lambda *_: asked.append(True))
    try:
        for number in range(count):
            if asked:
                return
            yield number
    finally:
        signal.signal(signal.SIGINT, before)
