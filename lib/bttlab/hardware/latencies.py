"""Latencies of operators and memories: data/u50/latencies.json, where each figure has its source."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from math import ceil

from bttlab.places import ROOT

FILE = ROOT / "data" / "u50" / "latencies.json"


@cache
def read_latencies() -> dict:
    """Return the file; not to be changed."""
    return json.loads(FILE.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Clock:
    """Part of a cycle that the schedule may fill.

    Attributes
    ----------
    mhz : float
    """

    mhz: float

    @property
    def budget(self) -> float:
        """Nanoseconds of chained logic in a cycle: the period less its uncertainty."""
        return 1e3 / self.mhz * (1 - read_latencies()["clock"]["uncertainty"])

    def part(self, nanoseconds: float) -> float:
        """Return a delay as a part of a cycle."""
        return nanoseconds / self.budget


_more: dict[str, int] = {}  # cycles beside the file's, by operator or memory


@contextmanager
def one_more(name: str) -> Iterator[None]:
    """Count with a cycle more of an operator, or of a load from an implementation."""
    _more[name] = 1
    try:
        yield
    finally:
        del _more[name]


def cycles(kind: str) -> int | None:
    """Return the latency of a floating point operator, None for other kinds."""
    latency = read_latencies()["cycles"].get(kind)
    return latency["value"] + _more.get(kind, 0) if latency else None


def read_cycles(implementation: str, pinned: int | None = None) -> int:
    """Return the latency of a load: what BIND_STORAGE pins, or the file's."""
    table = read_latencies()["read"]
    value = table.get(implementation, table["bram"])["value"] if pinned is None else pinned
    return value + _more.get(implementation, 0)


def write_cycles() -> int:
    """Return the cycles from a store to the first load that sees it."""
    return read_latencies()["write"]["value"]


def delay(kind: str, bits: int = 1, inputs: int = 2) -> float:
    """Return the delay of integer logic in nanoseconds; 0 for what has registers inside, and for wires.

    Parameters
    ----------
    kind : str
        add, compare, logic, select, shift, multiply, or another.
    bits : int
        Width; of a shift, bits of the amount.
    inputs : int
        Of a selection or a gate; levels grow with its logarithm.
    """
    entry = read_latencies()["delays"].get(kind)
    if entry is None:
        return 0.0
    if entry["per"] == "bit":
        count = bits
    elif kind == "shift":
        count = ceil(bits / 2)
    else:
        count = ceil(max(1, (inputs - 1).bit_length()))
    return entry["constant"] + entry["slope"] * count
