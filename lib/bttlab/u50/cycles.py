"""Cycles of the contraction kernels' engine, from shapes alone.

A loop of n iterations takes n x II + depth; the depths follow from the operators' latencies in `HardwareConfig`.
"""

import math

from bttlab.u50.hardware import HardwareConfig


class Engine:
    """Cycles of the three contractions of engine.h."""

    def __init__(self, hardware: HardwareConfig):
        self.h = hardware

    def expand(self, rows: int, depth: int, words: int, scalars_held: bool = False) -> int:
        h = self.h
        chunk, held = min(words, h.engine_chunk), min(depth, h.engine_rows)
        fetch = held * chunk
        scalars = held * math.ceil(rows / h.lanes) if scalars_held else 0
        one = fetch + math.ceil(words / h.engine_chunk) * max(fetch, rows * chunk)
        return math.ceil(depth / h.engine_rows) * (scalars + one + h.engine_depth)

    def accumulate(
        self, rows: int, depth: int, words: int, *, held: bool = False, few: bool = False, batch: int = 1
    ) -> int:
        h = self.h
        partials = math.ceil(h.accumulate / words) if few else 1
        passes, chunk, used = math.ceil(rows / h.engine_rows), min(words, h.engine_chunk), min(rows, h.engine_rows)
        together = min(passes, h.engine_slots // words) if words < h.accumulate else 1
        tiles = math.ceil(passes / together) * math.ceil(words / h.engine_chunk) * batch
        stream = math.ceil(depth / partials) * max(together * partials, math.ceil(h.accumulate / chunk)) * chunk
        drain = together * used * chunk * partials
        scalars = together * used * math.ceil(depth / h.lanes) if held else 0
        return scalars + tiles * max(stream, drain, scalars) + drain + h.engine_depth

    def reduce(self, rows: int, columns: int, words: int, batch: int = 1) -> int:
        h = self.h
        hold_a = columns > h.engine_rows
        held, streamed = (rows, columns) if hold_a else (columns, rows)
        used, slots = min(held, h.engine_rows), max(h.accumulate, min(streamed, h.engine_slots))
        chunk = min(words, h.engine_chunk)
        fetch, drain = used * chunk, slots * math.ceil(used / h.lane_trees)
        tiles = math.ceil(held / h.engine_rows) * math.ceil(streamed / h.engine_slots) * batch
        tiles *= math.ceil(words / h.engine_chunk)
        last = drain + (2 * used if hold_a else 0)
        return fetch + tiles * max(fetch, slots * chunk, drain) + last + h.engine_depth + h.lane_tree + h.add
