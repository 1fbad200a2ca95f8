"""The vector unit of the training processor: every operation against its formula in NumPy, to the bit."""

import numpy as np
import pytest

from processor_loop import LANES, C, Instruction, Loop, Operand, Sample, register, same, tree

F = np.float32
ROWS, WORDS, COUNT = 10, 3, 41
F0, F1 = F(0.37), F(1.25)
LOW, HIGH, STEPS, BITS = F(-9.0), F(4.0), F(16 / np.log(2)), 4
FIRST = int(np.floor(LOW * STEPS))


@pytest.fixture(scope="module")
def loop():
    return Loop()


@pytest.fixture
def random(loop):
    random = np.random.default_rng(7)
    loop.fill(random)
    return random


def table(random):
    """A plain function in entries 0 to 299, an exponential in 300 to 315."""
    entries = np.zeros((3, C.FUNCTION_ENTRIES), F)
    entries[:, :300] = random.normal(size=(3, 300))
    at = 2 ** (np.arange(16) / 16)
    entries[:, 300:316] = at, at * np.log(2) / 16, at * (np.log(2) / 16) ** 2 / 2
    return entries


def function(entries, x, exponential):
    base, low, high = (300, F(-80), F(80)) if exponential else (0, LOW, HIGH)
    t = np.minimum(np.maximum(x, low), high) * STEPS
    k = np.floor(t).astype(np.int64)
    d = t - k.astype(F)
    entry = (base + (k & 15 if exponential else k - FIRST)) % C.FUNCTION_ENTRIES
    c0, c1, c2 = entries[:, entry]
    v = c0 + d * (c1 + d * c2)
    return np.ldexp(v, (k >> BITS).astype(np.int32)).astype(F) if exponential else v


FUNCTIONS = [(0, C.PLAIN, 0, LOW, HIGH, STEPS), (300, C.EXPONENTIAL, BITS, -80.0, 80.0, STEPS)]


def vector(operation, b=True, c=True, r1=False, function=0, count=COUNT, **more):
    """An operation on ROWS rows of WORDS words, a word of each row in turn."""
    operands = {0: Operand(4, 10, (1, WORDS)), 3: Operand(7, 5, (1, WORDS)), 5: Operand(function, 20)}
    operands |= {1: Operand(5, 100, (1, WORDS))} if b else {}
    operands |= {2: Operand(6, 200, (1, WORDS))} if c else {}
    operands |= {4: Operand(8, 300, (1, WORDS))} if r1 else {}
    return Instruction(
        *(C.VECTOR, operation, (WORDS, ROWS), None, operands),
        count=count,
        immediates=(0, 1),
        depth=0b0100,
        slot_level=2,
        word_level=2,
        **more,
    )


class Rows:
    """What an operation reads, as rows of words; and its valid lanes."""

    def __init__(self, loop, b=True, c=True):
        def words(bank, base):
            return loop.bank[bank][base : base + ROWS * WORDS].reshape(ROWS, WORDS, LANES).copy()

        self.a = words(4, 10)
        self.b = words(5, 100) if b else self.a
        self.c = words(6, 200) if c else np.zeros_like(self.a)
        self.m, self.i, self.p, self.q = (loop.statistic[k, 20 : 20 + ROWS, None, None].copy() for k in range(4))
        self.valid = (np.arange(WORDS * LANES) < COUNT).reshape(WORDS, LANES)
        self.loop = loop

    def r0(self):
        return self.loop.bank[7][5 : 5 + ROWS * WORDS].reshape(ROWS, WORDS, LANES)

    def r1(self):
        return self.loop.bank[8][300 : 300 + ROWS * WORDS].reshape(ROWS, WORDS, LANES)

    def masked(self, value):
        return np.where(self.valid, value, F(0))

    def row_sum(self, value):
        total = np.zeros((ROWS, LANES), F)
        for w in range(WORDS):
            total = total + self.masked(value)[:, w]
        return np.array([tree(row) for row in total], F)

    def now(self, k):
        return self.loop.statistic[k, 20 : 20 + ROWS]


ELEMENTWISE = {
    C.COPY: lambda x: x.a,
    C.ADD: lambda x: x.a + x.b,
    C.SUM: lambda x: x.a + x.b,
    C.NORMALIZE: lambda x: (x.a - x.m) * x.i,
    C.AFFINE: lambda x: x.a * x.b + x.c,
    C.NORM_BACK: lambda x: ((x.a * x.b - x.p) - x.c * x.q) * x.i,
    C.FUNCTION: lambda x: function(x.table, x.a, False),
    C.TIMES_FUNCTION: lambda x: function(x.table, x.a, False) * x.b,
    C.TANH_BACK: lambda x: x.a * (F(1) - x.b * x.b),
    C.EXPONENT: lambda x: function(x.table, (x.a - x.m) * F0, True),
    C.SCALE: lambda x: x.a * x.i,
    C.SOFTMAX_BACK: lambda x: ((x.b - x.p) * x.a) * F0,
}


def run_vector(loop, entries, instruction, **more):
    loop.run(instruction, constants=[F0, F1], functions=FUNCTIONS, function_table=entries, **more)


@pytest.mark.parametrize("operation", ELEMENTWISE)
@pytest.mark.parametrize("b", [True, False])
def test_vector_results(loop, random, operation, b):
    rows = Rows(loop, b)
    rows.table = table(random)
    if operation == C.SUM and not b:
        rows.b = np.full_like(rows.a, -0.0)
    run_vector(loop, rows.table, vector(operation, b, function=operation == C.EXPONENT))
    same(rows.r0(), rows.masked(ELEMENTWISE[operation](rows)))


def test_normalize_gives_two_results(loop, random):
    rows = Rows(loop)
    run_vector(loop, table(random), vector(C.NORMALIZE, r1=True))
    r0 = (rows.a - rows.m) * rows.i
    same(rows.r0(), rows.masked(r0))
    same(rows.r1(), rows.masked(r0 * rows.b + rows.c))


def test_all_lanes_are_valid_without_a_count(loop, random):
    rows = Rows(loop)
    run_vector(loop, table(random), vector(C.ADD, count=0))
    same(rows.r0(), rows.a + rows.b)


def test_row_sums(loop, random):
    rows = Rows(loop)
    entries = table(random)
    run_vector(loop, entries, vector(C.SUM))
    same(rows.now(0), F0 * rows.row_sum(rows.a + rows.b))
    run_vector(loop, entries, vector(C.DOT))
    same(rows.now(2), rows.row_sum(rows.a * rows.b))
    rows = Rows(loop)
    run_vector(loop, entries, vector(C.VARIANCE))
    u = rows.a - rows.m
    same(rows.now(1), F(1) / np.sqrt(F0 * rows.row_sum(u * u) + F1))
    run_vector(loop, entries, vector(C.NORM_SUMS))
    d = rows.a * rows.b
    same(rows.now(2), F0 * rows.row_sum(d))
    same(rows.now(3), F0 * rows.row_sum(d * rows.c))


def test_columns_add_rows_lane_by_lane(loop, random):
    a, b = loop.bank[4][: 6 * 9].reshape(6, 9, LANES).copy(), loop.bank[5][: 6 * 9].reshape(6, 9, LANES).copy()
    kept = loop.bank[7][9:].copy()
    operands = {0: Operand(4, 0, (9, 1)), 1: Operand(5, 0, (9, 1)), 3: Operand(7, 0, (0, 1)), 4: Operand(8, 0, (0, 1))}
    loop.run(Instruction(C.VECTOR, C.COLUMNS, (6, 9), None, operands, depth=0b0100, slot_level=2))
    products = sums = np.zeros((9, LANES), F)
    for row in range(6):
        products, sums = products + a[row] * b[row], sums + a[row]
    same(loop.bank[7][:9], products)
    same(loop.bank[8][:9], sums)
    same(loop.bank[7][9:], kept)


@pytest.mark.parametrize("intent", [False, True])
def test_maximum_and_loss(loop, random, intent):
    entries = table(random)
    loop.bank[4][10 : 10 + ROWS * WORDS] = random.integers(-4, 5, (ROWS * WORDS, LANES))
    rows = Rows(loop)
    sample = Sample(tokens=12, intent=37)
    labels = random.integers(0, COUNT, C.SEQUENCE)
    sample.slot[:] = labels.tolist()
    flags = C.LOSS | (C.INTENT if intent else 0)
    run_vector(loop, entries, vector(C.MAXIMUM, flags=flags), sample=sample)
    values = np.where(rows.valid, rows.a, -np.inf).reshape(ROWS, -1)
    same(rows.now(0), values.max(1))
    places = values.argmax(1)
    assert loop.argument[C.LAST_ROW] == places[-1] if intent else (loop.argument[:ROWS] == places).all()
    run_vector(loop, entries, vector(C.EXPONENT, function=1, flags=flags), sample=sample)
    u = rows.a - rows.now(0)[:, None, None]
    label = np.full(ROWS, 37) if intent else labels[1 : 1 + ROWS]
    is_label = (np.arange(WORDS * LANES).reshape(1, WORDS, LANES)) == label[:, None, None]
    total, margin = rows.row_sum(function(entries, u * F0, True)), rows.row_sum(np.where(is_label, u, F(0)))
    same(rows.now(1), F1 / total)
    if intent:
        assert (loop.loss_sum[C.LAST_ROW], loop.loss_margin[C.LAST_ROW]) == (total[-1], margin[-1])
    else:
        same(loop.loss_sum[:ROWS], total)
        same(loop.loss_margin[:ROWS], margin)
    run_vector(loop, entries, vector(C.LOSS_BACK, flags=flags), sample=sample)
    i = rows.now(1)[:, None, None]
    same(rows.r0(), rows.masked((rows.a * i - F0) - np.where(is_label, F1, F(0))))


def test_what_is_not_a_number_stays_so(loop, random):
    loop.bank[4][10, 3] = np.nan
    rows = Rows(loop)
    run_vector(loop, table(random), vector(C.FUNCTION))
    run_vector(loop, table(random), vector(C.EXPONENT, function=1))
    assert np.isnan(rows.r0()[0, 0, 3])
    run_vector(loop, table(random), vector(C.MAXIMUM))
    assert np.isfinite(rows.now(0)).all()


def test_scalars_of_the_sample_are_immediates(loop, random):
    rows = Rows(loop)
    sample = Sample(tokens=1)
    sample.scalar[13] = 0.123
    instruction = vector(C.SOFTMAX_BACK)
    instruction.immediates = (register(13), 0)
    run_vector(loop, table(random), instruction, sample=sample)
    same(rows.r0(), rows.masked(((rows.b - rows.p) * rows.a) * F(0.123)))
