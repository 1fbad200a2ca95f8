"""Latencies of operators and memories: data/u50/latencies.json, where each figure has its source."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from math import ceil

from bttlab.util.places import ROOT

SLOWER = 200  # MHz: up to this clock operators have the file's fewer registers
FILE = ROOT / "data" / "u50" / "latencies.json"


@cache
def read_latencies() -> dict:
    """Return the content of the file, from a cache; do not modify it."""
    return json.loads(FILE.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Clock:
    """The clock of the schedule, and the part of a cycle that chained logic may use."""

    mhz: float

    @property
    def budget(self) -> float:
        """Nanoseconds of a cycle for chained logic: the period minus the uncertainty."""
        return 1e3 / self.mhz * (1 - read_latencies()["clock"]["uncertainty"])

    def part(self, nanoseconds: float) -> float:
        """Return a delay as a fraction of the budget."""
        return nanoseconds / self.budget


_more: dict[str, int] = {}  # cycles added to the file's, by operator or memory


@contextmanager
def one_more(name: str) -> Iterator[None]:
    """Add a cycle to the latency of an operator, or of a load from a kind of memory, within the context."""
    _more[name] = 1
    try:
        yield
    finally:
        del _more[name]


def cycles(kind: str, clock_mhz: float = SLOWER) -> int | None:
    """Return the latency of a floating point operator at a clock, None for other kinds."""
    latency = read_latencies()["cycles"].get(kind)
    if latency is None:
        return None
    at_clock = latency if clock_mhz <= SLOWER else latency["at_300_mhz"]
    return at_clock["value"] + _more.get(kind, 0)


def read_cycles(implementation: str, pinned: int | None = None) -> int:
    """Return the latency of a load: the one of BIND_STORAGE (`pinned`), or the file's."""
    table = read_latencies()["read"]
    value = table.get(implementation, table["bram"])["value"] if pinned is None else pinned
    return value + _more.get(implementation, 0)


def write_cycles() -> int:
    """Return the cycles from a store to the first load that sees it."""
    return read_latencies()["write"]["value"]


def delay(kind: str, bits: int = 1, inputs: int = 2) -> float:
    """Return the delay of integer logic in nanoseconds; 0 for wires and for operators with registers inside.

    `bits` is the width; for a shift, that of the amount. `inputs` are those of a selection or a gate.
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
