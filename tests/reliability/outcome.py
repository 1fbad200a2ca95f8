"""Result of a trial."""

import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Outcome:
    """What a trial found: failures have a line for every attempt that failed; figures are by name, with their unit."""

    attempts: int
    failures: Sequence[str]
    figures: Mapping[str, Any]


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
