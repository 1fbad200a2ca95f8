"""Cycles of a training step, from the configuration and the shapes of the algorithm alone.

The emulated card counts what it executes (`TransformerTrainer.profile`); this module predicts the same from outside,
layer by layer, in the order of the files in hls_src. A loop of n iterations takes n x II + depth; the depths follow
from the operators' latencies in `HardwareConfig`.
"""

import math
from collections import Counter
from collections.abc import Iterable

from bttlab.model.config import LINEARS, ModelConfig
from bttlab.u50.hardware import HardwareConfig
from bttlab.u50.records import ParameterMemory, result_record, sample_record

Table = dict[tuple[str, str], int]


class _Step:
    """One training step on a sample of `length` tokens; methods return cycles."""

    def __init__(self, model: ModelConfig, hardware: HardwareConfig, length: int):
        self.model, self.hardware, self.length = model, hardware, length
        self.h = hardware
        self.feature_words = model.hidden_size // hardware.lanes
        self.parameter_words = ParameterMemory(model).words

    def words(self, elements: int) -> int:
        return math.ceil(elements / self.h.lanes)

    def loop(self, trips: int, interval: int, depth: int) -> int:
        return trips * interval + depth if trips > 0 else 0

    # --- engine.h

    def outer(self, rows: int, depth: int, words: int) -> int:
        h = self.h
        row_tiles = math.ceil(rows / h.engine_rows)
        tiles = row_tiles * math.ceil(words / h.engine_slots)
        return (
            h.start
            + row_tiles * (h.engine_rows * depth + h.read + h.start)
            + tiles * (h.engine_rows * h.engine_slots + h.read + h.start)
            + tiles * (h.engine_slots * depth + h.read + h.mul + h.add + h.start)
            + rows * words
            + tiles * h.start
        )

    def inner(self, rows: int, columns: int, depth_words: int) -> int:
        h = self.h
        row_tiles = math.ceil(rows / h.engine_rows)
        words = row_tiles * self.words(columns)
        tiles = row_tiles * math.ceil(columns / h.engine_slots)
        return (
            h.start
            + row_tiles * (h.engine_rows * depth_words + h.read + h.start)
            + words * (h.lanes // h.engine_slots) * 2 * (h.engine_slots + h.start)
            + tiles * (h.engine_slots * depth_words + h.read + h.mul + h.add + h.start)
            + rows * self.words(columns)
            + words * (h.lane_tree + h.add + h.start)
        )

    # --- elementwise.h

    def clear(self, words: int) -> int:
        return self.loop(words, 1, self.h.start)

    def copy(self, words: int) -> int:
        return self.loop(words, 1, self.h.read + self.h.start)

    def add(self, words: int) -> int:
        return self.loop(words, 1, self.h.read + self.h.add + self.h.start)

    def bias_forward(self, rows: int, row_words: int) -> int:
        return self.loop(rows * row_words, 1, self.h.read + self.h.start)

    def bias_backward(self, rows: int, row_words: int) -> int:
        return row_words * (rows * self.h.accumulate + self.h.read + self.h.start)

    def norm_forward(self) -> int:
        h, w = self.h, self.feature_words
        mean = w * h.accumulate + h.read + h.start + h.lane_tree + h.div
        variance = mean + 2 * h.add + h.mul + h.root + h.div
        return self.length * (mean + variance + w + h.read + 2 * h.add + 2 * h.mul + h.start)

    def norm_backward(self) -> int:
        h, w = self.h, self.feature_words
        sums = w * h.accumulate + h.read + 2 * h.mul + h.start + h.lane_tree + h.div
        return self.clear(2 * w) + self.length * (sums + w + h.read + 2 * h.mul + 2 * h.add + h.start)

    def row_maximum(self, count: int) -> int:
        return self.loop(count - 1, self.h.compare, self.h.read + self.h.start)

    def row_exponential(self, count: int) -> int:
        h = self.h
        return self.loop(
            self.words(count), h.accumulate, h.read + h.add + h.mul + h.exponential + h.start + h.lane_tree
        )

    def scale_row(self, words: int) -> int:
        return self.loop(words, 1, self.h.read + self.h.mul + self.h.start)

    def moved(self, elements: int) -> int:
        """Elements moved one by one into words."""
        return self.loop(elements, self.h.read + self.h.write, self.h.read + self.h.start)

    # --- tt_linear.h

    def _halves(self) -> list[tuple[int, int, int]]:
        """(near, middle, far) modes of the output and the input half."""
        return [self.model.linear_out_modes[::-1], self.model.linear_in_modes]

    def linear_forward(self, tokens: int) -> int:
        m, r = self.model, self.model.linear_rank
        total = self.moved(r * m.hidden_size)
        for near, middle, far in self._halves():
            total += self.outer(r * middle, r, self.words(far)) + self.moved(r * middle * far)
            total += self.outer(r * near, r, middle * far // self.h.lanes)
        total += self.inner(tokens, r, self.feature_words) + self.bias_forward(tokens, self.feature_words)
        return total + self.outer(tokens, r, self.feature_words)

    def linear_backward(self, tokens: int) -> int:
        m, r = self.model, self.model.linear_rank
        total = self.bias_backward(tokens, self.feature_words) + self.inner(tokens, r, self.feature_words)
        total += self.outer(tokens, r, self.feature_words) + 2 * self.outer(r, tokens, self.feature_words)
        total += self.moved(r * m.hidden_size)
        for near, middle, far in self._halves():
            tail, far_words = middle * far // self.h.lanes, self.words(far)
            total += self.inner(r * near, r, tail) + self.outer(r, r * near, tail)
            total += self.moved(r * middle * far_words * self.h.lanes)
            total += self.inner(r * middle, r, far_words) + self.outer(r, r * middle, far_words)
        return total

    # --- the layers

    def table(self) -> Table:
        """The step, SGD: cycles by stage and unit."""
        m, h, tokens = self.model, self.h, self.length
        w, token_words, words = self.feature_words, self.words(self.length), self.length * self.feature_words
        step: Counter[tuple[str, str]] = Counter()
        for part in LINEARS:
            step["FP", part] += m.encoders * self.linear_forward(tokens)
            step["BP", part] += m.encoders * self.linear_backward(tokens)

        head_words = m.hidden_size // m.heads // h.lanes
        softmax = self.row_maximum(tokens) + self.row_exponential(tokens) + self.scale_row(token_words) + h.div
        softmax_backward = token_words * (h.accumulate + 1) + 2 * h.read + 4 * h.mul + h.add + h.lane_tree + 2 * h.start
        inner, outer = self.inner(tokens, tokens, head_words), self.outer(tokens, tokens, head_words)
        step["FP", "attention"] = m.encoders * m.heads * (inner + tokens * softmax + outer)
        step["BP", "attention"] = m.encoders * m.heads * (inner + tokens * softmax_backward + 3 * outer)
        step["FP", "norm"] = (2 * m.encoders + 1) * self.norm_forward() + 2 * m.encoders * self.add(words)
        step["BP", "norm"] = (2 * m.encoders + 1) * self.norm_backward() + 2 * m.encoders * self.copy(words)
        step["FP", "gelu"] = m.encoders * self.loop(words, 1, h.read + h.distribution + h.mul + h.start)
        step["BP", "gelu"] = m.encoders * self.loop(words, 1, h.read + h.distribution + h.add + h.mul + h.start)

        self._embedding(step)
        for rows, classes in ((1, m.intents), (tokens - 1, m.slots)):
            class_words = self.words(classes)
            step["FP", "pooler"] += self.linear_forward(rows)
            step["BP", "pooler"] += self.linear_backward(rows)
            step["FP", "head"] += self.loop(rows * w, 1, h.read + h.tangent + h.start)
            step["FP", "head"] += self.bias_forward(rows, class_words) + self.inner(rows, classes, w)
            step["BP", "head"] += self.bias_backward(rows, class_words) + self.outer(classes, rows, w)
            step["BP", "head"] += self.outer(rows, classes, w)
            step["BP", "head"] += self.loop(rows * w, 1, h.read + 2 * h.mul + h.add + h.start)
            loss = self.row_maximum(classes) + self.row_exponential(classes) + self.scale_row(class_words)
            loss += h.div + h.logarithm + h.add
            argmax = self.loop(classes - 1, h.read + h.compare, h.start)
            step["FP", "loss"] += rows * (loss + argmax)
        finite = self.loop(self.parameter_words, h.accumulate, h.read + 2 * h.mul + h.start + h.lane_tree)
        step["PU", "update"] = finite + self.loop(self.parameter_words, 1, h.read + h.mul + h.add + h.start)
        record_bytes = sample_record(m).itemsize + result_record(m).itemsize
        step["IO", "transfer"] = 2 * h.hbm + record_bytes // 4 // h.lanes + 2 * h.start
        return dict(step)

    def _embedding(self, step: Counter[tuple[str, str]]) -> None:
        m, tokens, w = self.model, self.length, self.feature_words
        c1, c2, c3 = m.embedding_column_modes
        rank, rank_words = m.embedding_rank, self.words(m.embedding_rank)
        front, row = c1 * c2, c2 * rank_words  # front: the first two column modes; row: words of a row of core 2
        forward = (
            self.outer(c1, rank, row) + self.inner(c3, front, rank_words) + self.moved(m.hidden_size) + self.add(w)
        )
        step["FP", "embedding"] = tokens * forward
        backward = self.outer(c3, front, rank_words) + self.outer(front, c3, rank_words)
        backward += self.outer(rank, c1, row) + self.inner(c1, rank, row)
        rows = [m.embedding_row_modes[0] * c1, m.embedding_row_modes[1] * rank * c2, m.embedding_row_modes[2] * c3]
        step["BP", "embedding"] = (
            tokens * backward
            + self.clear(sum(rows) * rank_words)
            + self.copy(tokens * w)
            + self.clear((m.sequence_length - tokens) * w)
        )


def sample_cycles(model: ModelConfig, hardware: HardwareConfig, length: int) -> Table:
    """Return the cycles of one training step (SGD) by stage and unit.

    Parameters
    ----------
    model : ModelConfig
    hardware : HardwareConfig
    length : int
        Real tokens of the sample, [CLS] included.

    Returns
    -------
    dict of (stage, unit) to int
        Stages and units are those of `bttlab.u50.records`.
    """
    return {key: count for key, count in _Step(model, hardware, length).table().items() if count}


def epoch_cycles(model: ModelConfig, hardware: HardwareConfig, lengths: Iterable[int]) -> Table:
    """Return the cycles of an epoch over samples of the given lengths, by stage and unit."""
    total: Counter[tuple[str, str]] = Counter()
    for length, count in Counter(map(int, lengths)).items():
        for key, cycles in sample_cycles(model, hardware, length).items():
            total[key] += count * cycles
    return dict(total)
