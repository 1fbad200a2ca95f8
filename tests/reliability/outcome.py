"""What a trial found."""

from collections.abc import Mapping, Sequence
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
        By name: a count, a text, or what `bttlab.quantities.measured` returns.
    """

    title: str
    tried: str
    attempts: int
    failures: Sequence[str] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)
