"""The training processor step by step in NumPy, as docs/processor.md says it: slow and plain, to compare others with.

`Machine` has the memories, `run` executes instructions one after the other. Nothing here is shared with the sources in
hls_src but the constants.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bttlab.compiler.machine import machine

SIGN = np.uint32(0x7FFFFFFF)
STATE_LIMIT, SQUARE_LIMIT = 0x5F000000, 0x7F000000
f32 = np.float32
OPTIMIZERS = SGD, MOMENTUM, ADAMW = range(3)  # of state.h
PENDING = NOTHING, APPLY, DISCARD = range(3)

C = machine()
DEPTHS = [bank.depth for bank in C.banks]
LANES, ROWS, SLOTS, SEQUENCE, LAST_ROW = C.LANES, C.ROWS, C.ACCUMULATORS, C.SEQUENCE, C.LAST_ROW


@dataclass
class Operand:
    where: int = 0  # bank, or engine of a buffer operand
    base: int = 0
    stride: tuple[int, ...] = (0, 0, 0, 0)
    token_offset: int = 0  # 1: of flag field A, 2: of B
    group: int = 0


@dataclass
class Instruction:
    """An instruction in plain numbers; bounds, active and count are codes."""

    unit: int
    operation: int
    n: tuple[int, ...]
    operands: dict[int, Operand]
    active: tuple[int, ...] = ()
    flags: int = 0
    count: int = 0
    immediate: tuple[int, int] = (0, 0)
    row_level: int = 0
    row_base: int = 0
    depth_mask: int = 0
    accumulator_level: int = 0
    vector_level: int = 0
    offset_tables: tuple[int, int] = (0, 0)
    offset_level: int = 0

    def __post_init__(self) -> None:
        self.active = self.active or self.n

    def fields(self) -> list[int]:
        """The 64 fields."""
        a, b = self.offset_tables
        flags = self.flags | a << 8 | b << 10 | self.vector_level << 12 | self.offset_level << 14
        fields = [self.unit | self.operation << 4, flags, *[0] * 14, *self.n, *self.active]
        for o in range(6):
            operand = self.operands.get(o)
            if operand is None:
                fields += [0] * 6
            else:
                where = 1 << 15 | operand.where | operand.token_offset << 8 | operand.group << 10
                fields += [where, operand.base, *operand.stride]
        row = self.row_level | (self.row_base & 63) << 2 | self.depth_mask << 8 | self.accumulator_level << 12
        return [value & 0xFFFF for value in [*fields, self.count, *self.immediate, row]]

    def vectors(self) -> np.ndarray:
        """Both vectors of 16 integers."""
        return packed(self.fields())


def packed(fields: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return an instruction's 64 fields as both of its vectors of 16 integers."""
    low_high = np.array(fields, np.uint32).reshape(32, 2)
    return (low_high[:, 0] | low_high[:, 1] << 16).astype(np.uint32).reshape(2, LANES)


@dataclass
class Function:
    base: int
    mode: int
    bits: int
    low: float
    high: float
    steps: float


@dataclass
class Sample:
    tokens: int
    intent: int
    scalar: np.ndarray  # 14 floats
    token_offset: np.ndarray  # OFFSET_TABLES x SEQUENCE
    slot: np.ndarray  # SEQUENCE


@dataclass
class Call:
    """Arguments of a run beside the sample, and the flags that it sets."""

    optimizer: int = SGD
    beta1: float = 0.9
    rest1: float = 0.1
    beta2: float = 0.999
    rest2: float = 0.001
    epsilon: float = 1e-8
    pending: int = NOTHING
    rate: float = 0.0
    step: float = 0.0
    root: float = 0.0
    keep: float = 0.0
    overflow: bool = False
    state_overflow: list[bool] = field(default_factory=lambda: [False] * 3)


def tree(vector: np.ndarray) -> np.float32:
    """Lane l meets lane l + 8, then l + 4, l + 2, l + 1."""
    while len(vector) > 1:
        half = len(vector) // 2
        vector = vector[:half] + vector[half:]
    return vector[0]


def overflows(vector: np.ndarray, limit: int = STATE_LIMIT) -> bool:
    return bool(((np.asarray(vector, f32).view(np.uint32) & SIGN) >= limit).any())


class Machine:
    """All memories, filled with zeros, and the units."""

    def __init__(self) -> None:
        zeros = lambda *shape: np.zeros(shape, f32)  # noqa: E731
        self.bank = [zeros(depth, LANES) for depth in DEPTHS]
        self.operand_buffer = zeros(2, ROWS, C.OPERAND_BUFFER_DEPTH, LANES)
        self.sums = zeros(2, 2, ROWS, SLOTS, LANES)
        self.statistic = zeros(4, C.STATISTICS)
        self.accumulator = zeros(2, C.ROW_ACCUMULATORS, LANES)
        self.largest = zeros(C.ROW_ACCUMULATORS)
        self.place = np.zeros(C.ROW_ACCUMULATORS, np.int32)
        self.column = zeros(LANES, 2 * C.SHUFFLE_VECTORS)
        self.loss_sum, self.loss_margin = zeros(SEQUENCE + 1), zeros(SEQUENCE + 1)
        self.argument = np.zeros(SEQUENCE + 1, np.int32)
        self.registers = [(0, 0, 0, 0)] * C.REGISTERS  # offset, shift, low, high
        self.constant = zeros(C.CONSTANTS)
        self.functions: list[Function] = []
        self.function_table = zeros(3, C.FUNCTION_ENTRIES)
        self.shuffle_table = np.zeros((C.SHUFFLE_ENTRIES, 32), np.int64)

    def run(self, instructions: list[Instruction], sample: Sample, call: Call) -> None:
        """Execute instructions in their order."""
        units = {C.ENGINE_0: self.engine, C.ENGINE_1: self.engine, C.DRAIN_0: self.drain, C.DRAIN_1: self.drain}
        units |= {C.VECTOR: self.vector, C.SHUFFLE: self.shuffle, C.UPDATE: self.update}
        with np.errstate(all="ignore"):
            for code in instructions:
                self.code, self.sample, self.call = code, sample, call
                self.n = [self.value(x) for x in code.n]
                self.active = [self.value(x) for x in code.active]
                self.count = self.value(code.count)
                self.f0, self.f1 = (self.immediate(x) for x in code.immediate)
                self.slot = 0
                before = None
                for index in itertools.product(*map(range, self.n)):
                    if before is not None:
                        advanced = next(j for j in range(4) if index[j] != before[j])
                        again = code.accumulator_level != 7 and advanced <= code.accumulator_level
                        self.slot = 0 if again else self.slot + 1
                    before = self.index = index
                    self.first = all(index[j] == 0 for j in range(4) if code.depth_mask >> j & 1)
                    self.last = all(index[j] == self.active[j] - 1 for j in range(4) if code.depth_mask >> j & 1)
                    if code.unit == C.SHUFFLE or all(i < active for i, active in zip(index, self.active, strict=True)):
                        units[code.unit]()

    # Codes, operands

    def value(self, code: int) -> int:
        if not code >> 15:
            return code
        offset, shift, low, high = self.registers[code & 63]
        return int(np.clip((self.sample.tokens + offset) >> shift, low, high))

    def immediate(self, code: int) -> np.float32:
        return self.sample.scalar[code & 15] if code >> 15 else self.constant[code]

    def has(self, o: int) -> bool:
        return o in self.code.operands

    def address(self, o: int) -> int:
        operand = self.code.operands[o]
        address = operand.base + sum(i * stride for i, stride in zip(self.index, operand.stride, strict=True))
        if operand.token_offset:
            table = self.code.offset_tables[operand.token_offset - 1]
            address += int(self.sample.token_offset[table][8 * operand.group + self.index[self.code.offset_level]])
        return address % 2**16

    def read(self, o: int) -> np.ndarray:
        if not self.has(o):
            return np.zeros(LANES, f32)
        return self.bank[self.code.operands[o].where][self.address(o)].copy()

    def write(self, o: int, vector: np.ndarray) -> None:
        given = self.has(o) or self.code.unit != C.VECTOR  # of the vector unit's results only those that go somewhere
        if self.code.flags & C.CHECK and given:
            self.call.overflow |= overflows(vector)
        if self.has(o):
            self.bank[self.code.operands[o].where][self.address(o)] = vector

    def write_buffered(self, o: int, vector: np.ndarray) -> None:
        if self.has(o):
            self.operand_buffer[self.code.operands[o].where & 1, self.row()][self.address(o)] = vector

    def row(self) -> int:
        return (self.code.row_base + self.index[self.code.row_level]) % ROWS

    # Engines and drains

    def engine(self) -> None:
        e, k = self.code.unit, min(self.count, ROWS)
        sums = self.sums[e, 1 if self.code.flags & C.PONG else 0][:, self.slot % SLOTS]
        depth = [j for j in range(4) if self.code.depth_mask >> j & 1]
        fold = self.code.operation == C.REDUCE and self.index[depth[0]] == self.n[depth[0]] - 1
        if self.code.operation == C.EXPAND:
            result, scalars, buffer = self.read(3), self.read(2), self.operand_buffer[e, :, self.address(0)]
            for r in range(k):
                result = result + scalars[r] * buffer[r]
        elif self.code.operation == C.ACCUMULATE:
            stream, scalars = self.read(1), self.read(2)
            for r in range(ROWS):
                c = scalars[r] if r < k else f32(0)
                sums[r] = (f32(0) if self.first else sums[r]) + stream * c
        elif not fold:
            stream, buffer = self.read(1), self.operand_buffer[e, :, self.address(0)]
            for r in range(ROWS):
                sums[r] = (f32(0) if self.first else sums[r]) + stream * buffer[r]
        else:
            result = np.zeros(LANES, f32)
            addend = self.read(3)
            for r in range(k):
                result[r] = tree(sums[r]) + addend[r] if self.has(3) else tree(sums[r])
            if self.code.flags & C.ONE and k < LANES:
                result[k] = 1
        if self.code.operation == C.EXPAND or fold:
            self.write(4, result)
            self.write_buffered(5, result)

    def drain(self) -> None:
        pong = 1 if self.code.flags & C.PONG else 0
        self.write(4, self.sums[self.code.unit - C.DRAIN_0, pong, self.row(), self.address(0)])

    # Vector unit

    def function(self, x: np.ndarray) -> np.ndarray:
        g = self.functions[self.code.operands[5].where]
        t = np.minimum(np.maximum(x, f32(g.low)), f32(g.high)) * f32(g.steps)
        floor = np.floor(t)
        d, k = t - floor, floor.astype(np.int64)
        place = k % 2**g.bits if g.mode else k - int(np.floor(f32(g.low) * f32(g.steps)))
        c0, c1, c2 = self.function_table[:, g.base + place]
        v = c0 + d * (c1 + d * c2)
        return (v.view(np.int32) + ((k >> g.bits) << 23).astype(np.int32)).view(f32) if g.mode else v

    def add_to_row(self, which: int, vector: np.ndarray) -> np.ndarray:
        slot = self.slot % C.ROW_ACCUMULATORS
        before = f32(0) if self.first else self.accumulator[which, slot]
        self.accumulator[which, slot] = before + vector
        return self.accumulator[which, slot].copy()

    def vector(self) -> None:
        code, slot, last, f0, f1 = self.code, self.slot, self.last, self.f0, self.f1
        row = ((code.operands[5].base if self.has(5) else 0) + slot) % C.STATISTICS
        kept = LAST_ROW if code.flags & C.INTENT else slot % SEQUENCE
        place = LANES * self.index[code.vector_level] + np.arange(LANES)
        valid = place < self.count if self.count else np.full(LANES, True)
        label = self.sample.intent if code.flags & C.INTENT else self.sample.slot[(slot + 1) % SEQUENCE]
        is_label = place == label
        zero = np.zeros(LANES, f32)

        def masked(vector: np.ndarray, mask: np.ndarray = valid) -> np.ndarray:
            return np.where(mask, vector, f32(0)).astype(f32)

        m, i, p, q = self.statistic[:, row]
        a = self.read(0)
        b = self.read(1) if self.has(1) else a
        c = self.read(2)
        r0 = r1 = None
        match code.operation:
            case C.COPY:
                r0 = a
            case C.ADD:
                r0 = a + b
            case C.SUM:
                r0 = masked(a + b) if self.has(1) else masked(a)
                total = self.add_to_row(0, r0)
                if last:
                    self.statistic[0, row] = f0 * tree(total)
            case C.VARIANCE:
                u = masked(a - m)
                total = self.add_to_row(0, u * u)
                if last:
                    self.statistic[1, row] = f32(1) / np.sqrt(f0 * tree(total) + f1)
            case C.NORMALIZE:
                r0 = (a - m) * i
                r1 = r0 * b + c
            case C.AFFINE:
                r0 = a * b + c
            case C.NORM_SUMS:
                d = masked(a * b)
                first, second = self.add_to_row(0, d), self.add_to_row(1, masked(d * c))
                if last:
                    self.statistic[2, row], self.statistic[3, row] = f0 * tree(first), f0 * tree(second)
            case C.NORM_BACK:
                r0 = ((a * b - p) - c * q) * i
            case C.COLUMNS:
                products, terms = self.add_to_row(0, masked(a * b)), self.add_to_row(1, masked(a))
                if last:
                    r0, r1 = products, terms
            case C.FUNCTION:
                r0 = self.function(a)
            case C.TIMES_FUNCTION:
                r0 = self.function(a) * b
            case C.TANH_BACK:
                r0 = a * (f32(1) - b * b)
            case C.MAXIMUM:
                at = slot % C.ROW_ACCUMULATORS
                if self.first:
                    self.largest[at], self.place[at] = -np.inf, 0
                for lane in np.flatnonzero(valid):
                    if a[lane] > self.largest[at]:
                        self.largest[at], self.place[at] = a[lane], place[lane]
                if last:
                    self.statistic[0, row], self.argument[kept] = self.largest[at], self.place[at]
            case C.EXPONENT:
                r0 = masked(self.function((a - m) * f0))
                total = self.add_to_row(0, r0)
                margin = self.add_to_row(1, masked(a - m, valid & is_label)) if code.flags & C.LOSS else zero
                if last:
                    self.statistic[1, row] = f1 / tree(total)
                    if code.flags & C.LOSS:
                        self.loss_sum[kept], self.loss_margin[kept] = tree(total), tree(margin)
            case C.SCALE:
                r0 = a * i
            case C.LOSS_BACK:
                r0 = (a * i - f0) - masked(np.full(LANES, f1), is_label)
            case C.DOT:
                total = self.add_to_row(0, masked(a * b))
                if last:
                    self.statistic[2, row] = tree(total)
            case C.SOFTMAX_BACK:
                r0 = ((b - p) * a) * f0
        if r0 is not None:
            self.write(3, masked(r0))
        if r1 is not None:
            self.write(4, masked(r1))

    # Shuffle and update units

    def shuffle(self) -> None:
        block, half = self.index[0], C.SHUFFLE_VECTORS
        active = all(self.index[j] < self.active[j] for j in (1, 2, 3))
        if active and block + 1 < self.n[0]:
            entry, vector = self.shuffle_table[self.address(0)][:16], self.read(1)
            for j in range(LANES):
                if entry[j] >> 15:
                    self.column[j, block % 2 * half + (entry[j] >> 4 & 255) % half] = vector[entry[j] & 15]
        if self.index[3] < self.count and block > 0:
            entry, vector = self.shuffle_table[self.address(2)][16:], np.zeros(LANES, f32)
            for lane in range(LANES):
                j = entry[lane] & 15
                if entry[lane] >> 15:
                    vector[lane] = self.column[j, (block - 1) % 2 * half + (entry[j] >> 4 & 255) % half]
            self.write(4, vector)
            self.write_buffered(5, vector)

    def update(self) -> None:
        call = self.call
        if call.pending == NOTHING:
            return
        if call.pending == APPLY:
            p, g, m, v = (self.read(o) for o in range(4))
            rate, beta1, beta2, rest1, rest2 = (
                f32(x) for x in (call.rate, call.beta1, call.beta2, call.rest1, call.rest2)
            )
            if call.optimizer == SGD:
                p = p - rate * g
            elif call.optimizer == MOMENTUM:
                m = beta1 * m + g
                p = p - rate * m
            else:
                m = beta1 * m + rest1 * g
                v = beta2 * v + (rest2 * g) * g
                step, root, keep, epsilon = (f32(x) for x in (call.step, call.root, call.keep, call.epsilon))
                p = p * keep - (step * m) / (np.sqrt(v) * root + epsilon)
            vectors = [p] if call.optimizer == SGD else [p, m] if call.optimizer == MOMENTUM else [p, m, v]
            for o, vector in zip((0, 2, 3), vectors, strict=False):
                self.bank[self.code.operands[o].where][self.address(o)] = vector
                limit = SQUARE_LIMIT if o == 3 else STATE_LIMIT
                call.state_overflow[o and o - 1] |= overflows(vector, limit)
        if self.code.flags & C.CLEAR:
            self.bank[self.code.operands[1].where][self.address(1)] = 0
