"""Cycles of a training step, from the configuration and the shapes of the algorithm alone.

The emulated card counts what it executes (`TransformerTrainer.profile`); this module predicts the same from outside,
layer by layer, in the order of the files in hls_src. A loop of n iterations takes n x II + depth; the depths follow
from the operators' latencies in `HardwareConfig`.
"""

import math
from collections import Counter
from collections.abc import Iterable

from bttlab.model.config import LINEARS, ModelConfig
from bttlab.tensor.cost import flow_cost, lookup_cost
from bttlab.u50.hardware import HardwareConfig
from bttlab.u50.kernel import OverlayError
from bttlab.u50.records import ParameterMemory, result_record, sample_record, unit_of_update

Table = dict[tuple[str, str], int]


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


class _Step:
    """One training step on a sample of `length` tokens; methods return cycles. The depths are those of hls_src."""

    def __init__(self, model: ModelConfig, hardware: HardwareConfig, length: int, optimizer: str):
        self.model, self.h, self.length, self.optimizer = model, hardware, length, optimizer
        self.w = model.hidden_size // hardware.lanes  # words of a token's features
        self.engine = Engine(hardware)

    def words(self, elements: int) -> int:
        return math.ceil(elements / self.h.lanes)

    def loop(self, trips: int, interval: int, depth: int) -> int:
        """A loop from memory to memory; depth: of what is between."""
        h = self.h
        return trips * interval + h.read + depth + h.write + h.start if trips > 0 else 0

    # --- tt_linear.h

    def _halves(self) -> tuple[tuple[int, int, int], ...]:
        """(near, middle, far) modes of the output and the input half."""
        return self.model.linear_out_modes[::-1], self.model.linear_in_modes

    def merge_forward(self, near: int, middle: int, far: int) -> int:
        r, far_words = self.model.linear_rank, self.words(far)
        tail = self.engine.expand(r * middle, r, far_words) + self.loop(r * middle * far_words, 1, 0)
        return tail + self.engine.expand(r * near, r, middle * far // self.h.lanes)

    def merge_backward(self, near: int, middle: int, far: int) -> int:
        r, far_words, tail_words = self.model.linear_rank, self.words(far), middle * far // self.h.lanes
        return (
            self.engine.reduce(r * near, r, tail_words)
            + self.engine.accumulate(r, r * near, tail_words)
            + self.loop(r * middle * far_words, 1, 0)
            + self.engine.reduce(r * middle, r, far_words)
            + self.engine.accumulate(r, r * middle, far_words, few=True)
        )

    def turn(self) -> int:
        return self.loop((self.model.linear_rank + 1) * self.w, 1, self.h.read)

    def linear_prepare(self) -> int:
        out, into = (self.merge_forward(*half) for half in self._halves())
        return max(into, out + self.turn())

    def linear_forward(self, tokens: int, last: bool = False) -> int:
        r = self.model.linear_rank
        first, second = self.engine.reduce(tokens, r, self.w), self.engine.expand(tokens, r, self.w)
        if last:
            return first + second
        out, into = (self.merge_forward(*half) for half in self._halves())
        return max(first, out) + max(second, into, self.turn())

    def linear_backward(self, tokens: int) -> int:
        r, engine = self.model.linear_rank, self.engine
        cores = engine.accumulate(r, tokens, self.w)
        out = max(engine.reduce(tokens, r, self.w), cores)
        into = max(cores, engine.expand(tokens, r, self.w), self.turn(), self.column_sums(tokens, self.w))
        return out + into + max(self.merge_backward(*half) for half in self._halves())

    # --- elementwise.h, norm.h, softmax.h

    def column_sums(self, rows: int, row_words: int) -> int:
        return self.loop(max(rows, 1) * max(row_words, self.h.accumulate), 1, self.h.add)

    def norm_forward(self) -> int:
        h, t, words = self.h, self.length, self.length * self.w
        turns = self.w * max(t, h.accumulate)
        return (
            self.loop(turns, 1, 2 * h.add)
            + t + h.lane_tree + h.div + h.start
            + self.loop(turns, 1, 2 * h.add + h.mul)
            + t + h.lane_tree + 2 * h.div + h.add + h.root + h.write + h.start
            + self.loop(words, 1, 2 * h.add + 2 * h.mul)
        )  # fmt: skip

    def norm_backward(self) -> int:
        h, t, words = self.h, self.length, self.length * self.w
        return (
            self.loop(words, 2, h.mul + h.add)
            + self.loop(self.w * max(t, h.accumulate), 1, 2 * h.mul + h.add)
            + 2 * t + h.lane_tree + h.div + h.write + h.start
            + self.loop(words, 1, 2 * h.mul + 2 * h.add)
        )  # fmt: skip

    def merging_again(self) -> int:
        """What the LayerNorms wait for: beside each, the cores of half an encoder's layers are merged again."""
        layers = len(LINEARS) * self.model.encoders + 2
        again = Counter(layer // (len(LINEARS) // 2) for layer in range(layers - self.h.merged_layers))
        norm, merging = self.norm_backward(), self.linear_prepare()
        return sum(max(0, layers * merging - norm) for layers in again.values())

    def softmax(self, words: int) -> int:
        h = self.h
        exponential = h.add + h.mul + h.exponential + h.lane_tree + h.add
        return (
            self.loop(words, 2 * h.compare, 4 * h.compare)
            + self.loop(words, h.lanes // h.function_lanes, exponential)
            + self.loop(words, 1, h.div + h.mul)
        )

    def cross_entropy(self, rows: int, classes: int) -> int:
        h = self.h
        if rows == 0:
            return 0
        words = rows * self.words(classes)
        margin, loss = rows + h.read + h.start, rows * h.accumulate + h.read + h.logarithm + h.add + h.start
        return margin + self.softmax(words) + self.loop(words, 1, h.add) + loss

    # --- the layers

    def table(self) -> Counter[tuple[str, str]]:
        step: Counter[tuple[str, str]] = Counter()
        self._encoders(step)
        self._embedding(step)
        self._heads(step)
        self._update(step)
        m, h = self.model, self.h
        record_bytes = sample_record(m).itemsize + result_record(m).itemsize
        step["IO", "transfer"] = 2 * h.hbm + record_bytes // 4 // h.lanes + 2 * h.start
        return step

    def _encoders(self, step: Counter[tuple[str, str]]) -> None:
        m, h, tokens, words = self.model, self.h, self.length, self.length * self.w
        for part in LINEARS:
            step["FP", part] = m.encoders * self.linear_forward(tokens)
            step["BP", part] = m.encoders * self.linear_backward(tokens)
        step["FP", LINEARS[0]] += self.linear_prepare()

        head_words = m.hidden_size // m.heads // h.lanes
        scores = self.engine.reduce(tokens, tokens, head_words, m.heads)
        held, streamed = (
            self.engine.accumulate(tokens, tokens, head_words, held=held, batch=m.heads) for held in (True, False)
        )
        sequence_words = self.words(m.sequence_length)
        softmax_backward = self.loop(m.heads * tokens, 2 * sequence_words, 3 * h.mul + 2 * h.add + h.lane_tree)
        step["FP", "attention"] = m.encoders * (scores + self.softmax(m.heads * tokens * self.words(tokens)) + held)
        step["BP", "attention"] = m.encoders * (max(streamed, scores) + softmax_backward + max(held, streamed))

        step["FP", "norm"] = (2 * m.encoders + 1) * self.norm_forward()
        step["BP", "norm"] = (2 * m.encoders + 1) * self.norm_backward() + self.merging_again()
        gelu = self.loop(words, h.lanes // h.function_lanes, h.distribution + h.mul + h.add)
        step["FP", "gelu"] = m.encoders * gelu
        step["BP", "gelu"] = m.encoders * self.loop(words, 1, h.mul)

    def _embedding(self, step: Counter[tuple[str, str]]) -> None:
        m, h, tokens, engine = self.model, self.h, self.length, self.engine
        c1, c2, c3 = m.embedding_column_modes
        rank, rank_words = m.embedding_rank, self.words(m.embedding_rank)
        front, row = c1 * c2, c2 * rank_words  # front: the first two column modes; row: words of a row of core 2
        tail = engine.accumulate(c1, rank, row, held=True)
        look_up = engine.reduce(front, c3, rank_words) + self.loop(front * self.words(c3), 1, 0)
        clear = max(n1 * n2 for n1, n2 in zip(m.embedding_row_modes, (c1, rank * c2, c3), strict=True)) * rank_words
        forward = tail + (tokens - 1) * max(tail, look_up) + look_up
        step["FP", "embedding"] = max(forward, clear + h.write + h.start)
        d_core_3 = engine.accumulate(c3, front, rank_words, few=True)
        d_tail = engine.expand(front, c3, rank_words)
        d_core_2, d_core_1 = engine.expand(rank, c1, row, scalars_held=True), engine.reduce(c1, rank, row)
        step["BP", "embedding"] = tokens * (max(d_core_3, d_tail) + max(d_core_2, d_core_1)) + self.loop(
            tokens * self.w, 1, 0
        )
        if tokens < m.sequence_length:
            step["BP", "embedding"] += (m.sequence_length - tokens) * self.w + h.write + h.start

    def _heads(self, step: Counter[tuple[str, str]]) -> None:
        m, h, w, engine = self.model, self.h, self.w, self.engine
        logits = []
        for rows, classes in ((1, m.intents), (self.length - 1, m.slots)):
            step["FP", "pooler"] += self.linear_forward(rows, last=classes == m.slots)
            step["BP", "pooler"] += self.linear_backward(rows)
            step["FP", "head"] += self.loop(rows * w, h.lanes // h.function_lanes, h.tangent)
            logits.append(engine.reduce(rows, classes, w))
            step["BP", "head"] += self.column_sums(rows, self.words(classes))
            d_head, d_pooled = engine.accumulate(classes, rows, w), engine.accumulate(rows, classes, w, held=True)
            step["BP", "head"] += max(d_head, d_pooled) + self.loop(rows * w, 1, 2 * h.mul + h.add)
            step["FP", "loss"] += self.cross_entropy(rows, classes)
        step["FP", "head"] += max(logits)
        step["FP", "loss"] += self.words(m.sequence_length) * h.lanes + h.read + h.start

    def _update(self, step: Counter[tuple[str, str]]) -> None:
        h, sizes = self.h, ParameterMemory(self.model).memories
        one = {
            "sgd": (1, 2 * (h.mul + h.add)),
            "momentum": (1, 2 * (h.mul + h.add)),
            "adamw": (h.lanes // h.update_lanes, 4 * h.mul + 3 * h.add + h.root + h.div),
        }[self.optimizer]
        units, moments = Counter(), Counter()
        for name, words in sizes.items():
            moments[unit_of_update(name)] += words
            units[unit_of_update(name)] += self.loop(words, *one)
        largest = max(sizes.values() if self.optimizer == "sgd" else moments.values())
        finite = math.ceil(largest / 2) + h.read + 4 * h.compare + h.start
        corrections = 2 * h.div + h.root + 2 * 31 * h.power if self.optimizer == "adamw" else 0
        step["PU", "update"] = finite + corrections + max(units.values())


def sample_cycles(model: ModelConfig, hardware: HardwareConfig, length: int, optimizer: str = "sgd") -> Table:
    """Return the cycles of one training step by stage and unit.

    Parameters
    ----------
    model : ModelConfig
    hardware : HardwareConfig
    length : int
        Real tokens of the sample, [CLS] included.
    optimizer : {"sgd", "momentum", "adamw"}

    Raises
    ------
    OverlayError
        If the model cannot have such a sample.

    Returns
    -------
    dict of (stage, unit) to int
        Stages and units are those of `bttlab.u50.records`.
    """
    if not 2 <= length <= model.sequence_length:
        raise OverlayError(f"a sample of {length} tokens: the model takes 2 to {model.sequence_length}")
    return {key: count for key, count in _Step(model, hardware, length, optimizer).table().items() if count}


def epoch_cycles(model: ModelConfig, hardware: HardwareConfig, lengths: Iterable[int], optimizer: str = "sgd") -> Table:
    """Return the cycles of an epoch over samples of the given lengths, by stage and unit."""
    total: Counter[tuple[str, str]] = Counter()
    for length, count in Counter(map(int, lengths)).items():
        for key, cycles in sample_cycles(model, hardware, length, optimizer).items():
            total[key] += count * cycles
    return dict(total)


def useful_macs(model: ModelConfig, length: int) -> int:
    """Return the multiply-accumulates of one training step that the mathematics asks for, without padding.

    Forward and backward of the contractions in the bi-directional flow (`bttlab.tensor.flow_cost`), attention, heads
    and embedding; what is computed element by element is not counted.
    """
    m, words = model, length - 1

    def linear(tokens: int) -> int:
        return flow_cost("bidirectional", tokens, m.linear_out_modes, m.linear_in_modes, m.linear_rank).macs

    attention = 6 * length * length * m.hidden_size
    poolers = linear(1) + (linear(words) if words else 0)
    heads = 3 * m.hidden_size * (m.intents + words * m.slots)
    embedding = lookup_cost(length, m.embedding_row_modes, m.embedding_column_modes, m.embedding_rank).macs
    return m.encoders * (len(LINEARS) * linear(length) + attention) + poolers + heads + embedding
