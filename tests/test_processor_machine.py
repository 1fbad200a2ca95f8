"""The loop of the training processor: each operation against its formula in NumPy, and the time that steps take."""

import itertools

import numpy as np
import pytest

from processor_loop import CONFIG, IMAGE_WORDS, LANES, C, Instruction, Loop, Operand, Program, Run, Sample, register

F = np.float32
NO_STEP = {"n": (3, 0, 2)}


@pytest.fixture(scope="module")
def loop():
    return Loop()


@pytest.fixture
def random(loop):
    random = np.random.default_rng(7)
    loop.fill(random)
    return random


def steps(n, live=None):
    """The indices of four levels at each step that acts."""
    n, live = ((1,) * (4 - len(v)) + tuple(v) for v in (n, n if live is None else live))
    for index in itertools.product(*(range(bound) for bound in n)):
        if all(i < limit for i, limit in zip(index, live, strict=True)):
            yield index


def address(operand, index):
    stride = (0,) * (4 - len(operand.stride)) + tuple(operand.stride)
    return (operand.base + sum(i * s for i, s in zip(index, stride, strict=True))) % 2**16


def tree(word):
    while len(word) > 1:
        word = word[: len(word) // 2] + word[len(word) // 2 :]
    return word[0]


def same(one, other):
    """Equal to the bit."""
    assert one.shape == other.shape
    np.testing.assert_array_equal(one.view(np.int32), other.view(np.int32))


# Engines


@pytest.mark.parametrize("engine", [0, 1])
@pytest.mark.parametrize("addend", [False, True])
def test_expand_adds_rows_in_order(loop, random, engine, addend):
    held, scalars = Operand(0, 5, (1, 0, 3)), Operand(4, 100, (0, 1, 7))
    before, result = Operand(5, 9, (3, 1, 11)), Operand(6, 40, (20, 4, 1))
    kept = Operand(1 - engine, 6, (1, 0, 2))
    operands = {0: held, 2: scalars, 4: result, 5: kept} | ({3: before} if addend else {})
    n, live, k = (3, 5, 2), (3, 4, 2), 11
    wanted_bank, wanted_held = loop.bank[6].copy(), loop.held[1 - engine].copy()
    for index in steps(n, live):
        c = loop.bank[4][address(scalars, index)]
        value = loop.bank[5][address(before, index)] if addend else np.zeros(LANES, F)
        for r in range(k):
            value = value + c[r] * loop.held[engine, r, address(held, index)]
        wanted_bank[address(result, index)] = value
        wanted_held[index[2] + 3, address(kept, index)] = value
    loop.run(Instruction(engine, C.EXPAND, n, live, operands, count=k, row=(2, 3)))
    same(loop.bank[6], wanted_bank)
    same(loop.held[1 - engine], wanted_held)


@pytest.mark.parametrize("engine", [0, 1])
@pytest.mark.parametrize("side", [0, 1])
def test_accumulate_and_drain(loop, random, engine, side):
    stream, scalars, result = Operand(4, 0, (10, 1)), Operand(5, 3, (1, 4)), Operand(7, 100, (64, 1))
    depth, slots, k = 4, 9, 13
    other = loop.sums[1 - engine].copy()
    wanted = np.zeros((C.ROWS, slots, LANES), F)
    for index in steps((depth, slots)):
        c = np.where(np.arange(C.ROWS) < k, loop.bank[5][address(scalars, index)], F(0))
        wanted[:, index[3]] += c[:, None] * loop.bank[4][address(stream, index)]
    accumulate = Instruction(
        *(engine, C.ACCUMULATE, (depth, slots), None, {1: stream, 2: scalars}),
        flags=C.SIDE * side,
        count=k,
        depth=0b0100,
        slot_level=2,
    )
    move = Instruction(
        *(C.DRAIN_0 + engine, 0, (k, slots), None, {0: Operand(0, 0, (0, 1)), 4: result}),
        flags=C.SIDE * side,
        row=(2, 0),
        after_drain={engine: 1},
    )
    loop.run(accumulate, move)
    same(loop.sums[engine, side, :, :slots], wanted)
    same(loop.sums[1 - engine], other)
    for r in range(k):
        same(loop.bank[7][100 + 64 * r : 100 + 64 * r + slots], wanted[r])


def test_drain_reads_one_side_while_the_engine_adds_to_the_other(loop, random):
    kept = loop.sums[0, 1].copy()
    accumulate = Instruction(
        C.ENGINE_0, C.ACCUMULATE, (20, 9), None, {1: Operand(4), 2: Operand(5)}, count=4, depth=0b0100, slot_level=2
    )
    move = Instruction(
        C.DRAIN_0, 0, (3, 60), None, {0: Operand(0, 0, (0, 1)), 4: Operand(7, 0, (60, 1))}, flags=C.SIDE, row=(2, 2)
    )
    loop.run(accumulate, move)
    same(loop.bank[7][:180], kept[2:5, :60].reshape(-1, LANES))


@pytest.mark.parametrize("addend", [False, True])
@pytest.mark.parametrize("one", [False, True])
@pytest.mark.parametrize("k", [16, 12, 5])
def test_reduce_folds_by_a_tree(loop, random, addend, one, k):
    words, slots = 5, 10
    held, stream = Operand(1, 7, (1, 0)), Operand(4, 50, (1, 6))
    before, result = Operand(5, 0, (0, 3)), Operand(8, 200, (0, 2))
    operands = {0: held, 1: stream, 4: result} | ({3: before} if addend else {})
    loop.bank[4][50:52] = -0.0
    wanted = loop.bank[8].copy()
    for s in range(slots):
        total = np.zeros((C.ROWS, LANES), F)
        for w in range(words):
            total = total + loop.bank[4][50 + w + 6 * s] * loop.held[1, :, 7 + w]
        folded = np.array([tree(row) for row in total], F)
        folded = folded + loop.bank[5][3 * s] if addend else folded
        folded[k:] = 0
        if one and k < LANES:
            folded[k] = 1
        wanted[200 + 2 * s] = folded
    flags = C.ONE * one
    loop.run(
        Instruction(C.ENGINE_1, C.REDUCE, (words + 1, slots), None, operands, flags, k, depth=0b0100, slot_level=2)
    )
    same(loop.bank[8], wanted)


def test_a_fold_keeps_negative_zero(loop, random):
    loop.held[0, :, 0] = 1
    loop.bank[4][0] = -0.0
    # A sum begins with +0; so -0 can only come from sums that are all -0 already: here a second pass over a kept slot.
    loop.sums[0, 0] = -0.0
    operands = {0: Operand(0), 1: Operand(4), 4: Operand(8)}
    loop.run(Instruction(C.ENGINE_0, C.REDUCE, (1,), None, operands, count=16, depth=0b1000))
    assert np.signbit(loop.bank[8][0]).all()


def test_live_bounds_and_idle_slots(loop, random):
    """Steps of the bound that are not live pass idle; they count as slots."""
    operands = {1: Operand(4, 0, (3, 1)), 2: Operand(5, 0, (1, 0))}
    kept = loop.sums[0, 0, :, 3:].copy()
    loop.run(Instruction(C.ENGINE_0, C.ACCUMULATE, (2, 8), (2, 3), operands, count=16, depth=0b0100, slot_level=2))
    wanted = np.zeros((C.ROWS, 3, LANES), F)
    for _, _, i, j in steps((2, 8), (2, 3)):
        wanted[:, j] += loop.bank[5][i][:, None] * loop.bank[4][3 * i + j]
    same(loop.sums[0, 0, :, :3], wanted)
    same(loop.sums[0, 0, :, 3:], kept)


# Vector unit

ROWS, WORDS, COUNT = 10, 3, 41
F0, F1 = F(0.37), F(1.25)
LOW, HIGH, STEPS, BITS = F(-9.0), F(4.0), F(16 / np.log(2)), 4
FIRST = int(np.floor(LOW * STEPS))


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


# Shuffle unit


def coloured(words_in, words_out):
    """Colour edges (word in -> word out) so that no two of a colour meet: at each word a permutation of the colours."""
    colour = np.full(len(words_in), -1)
    at_in, at_out = {}, {}
    for edge, ends in enumerate(zip(words_in, words_out, strict=True)):
        free_in = next(c for c in range(LANES) if (ends[0], c) not in at_in)
        free_out = next(c for c in range(LANES) if (ends[1], c) not in at_out)
        path, wanted, side, node = [], free_in, 1, ends[1]  # edges from this word out on, free_in and free_out in turn
        while (node, wanted) in (at_out if side else at_in):
            path.append((at_out if side else at_in)[node, wanted])
            node = (words_in if side else words_out)[path[-1]]
            side, wanted = 1 - side, free_in + free_out - wanted
        for e in path:
            del at_in[words_in[e], colour[e]], at_out[words_out[e], colour[e]]
        for e in path:
            colour[e] = free_in + free_out - colour[e]
            at_in[words_in[e], colour[e]] = at_out[words_out[e], colour[e]] = e
        colour[edge] = free_in
        at_in[ends[0], free_in] = at_out[ends[1], free_in] = edge
    return colour


@pytest.mark.parametrize("words", [5, 40])
def test_shuffle_makes_any_permutation(loop, random, words):
    blocks = 3
    permutation = random.permutation(words * LANES)  # element i of the result is element permutation[i] of the source
    colour = coloured(permutation // LANES, np.arange(words * LANES) // LANES)
    entries = np.zeros((C.SHUFFLE_ENTRIES, 2 * LANES), np.uint16)
    places = np.zeros(LANES, int)
    for i, source in enumerate(permutation):
        column, place = colour[i], i // LANES
        entries[100 + source // LANES, column] = 1 << 15 | place << 4 | source % LANES
        entries[200 + i // LANES, LANES + i % LANES] |= 1 << 15 | column
        entries[200 + i // LANES, LANES + column] |= place << 4
        places[column] += 1
    assert (places == words).all()
    source, result, kept = Operand(4, 30, (words, 1)), Operand(7, 1000 - words, (words, 1)), Operand(1, 40, (0, 1))
    operands = {0: Operand(0, 100, (0, 1)), 1: source, 2: Operand(0, 200, (0, 1)), 4: result, 5: kept}
    n = (blocks + 1, 1, 1, words + C.SHUFFLE_GAP)
    operands = {o: Operand(x.where, x.base, (x.stride[0], 0, 0, x.stride[1])) for o, x in operands.items()}
    loop.run(
        Instruction(*(C.SHUFFLE, 0, n, (1, 1, 1, words), operands), count=words, row=(0, -1)),
        entries=entries,
    )
    elements = loop.bank[4][30 : 30 + blocks * words].reshape(blocks, -1)
    wanted = elements[:, permutation].reshape(blocks, words, LANES)
    same(loop.bank[7][1000 : 1000 + blocks * words].reshape(wanted.shape), wanted)
    same(loop.held[1, :blocks, 40 : 40 + words], wanted)


# Update unit


@pytest.mark.parametrize("clear", [False, True])
@pytest.mark.parametrize("optimizer", ["SGD", "MOMENTUM", "ADAMW"])
def test_update(loop, random, optimizer, clear):
    bank = loop.bank
    for b in (4, 5, 6, 7):
        bank[b][:20] = np.abs(bank[b][:20])
    p, g, m, v = (bank[b][:20].copy() for b in (4, 5, 6, 7))
    beta1, beta2, epsilon, rate, step, root, keep = (F(x) for x in (0.9, 0.99, 1e-3, 0.1, 0.2, 1.7, 0.95))
    section = Run(0, 0, ("SGD", "MOMENTUM", "ADAMW").index(optimizer), beta1, beta2, epsilon, 1, rate, step, root, keep)
    operands = {o: Operand(4 + o, 0, (1,)) for o in range(4)}
    loop.run(Instruction(C.UPDATE, 0, (20,), None, operands, C.CLEAR * clear), section=section)
    if optimizer == "SGD":
        wanted = (p - rate * g, m, v)
    elif optimizer == "MOMENTUM":
        m = beta1 * m + g
        wanted = (p - rate * m, m, v)
    else:
        m = beta1 * m + (F(1) - beta1) * g
        v = beta2 * v + ((F(1) - beta2) * g) * g
        wanted = (p * keep - (step * m) / (np.sqrt(v) * root + epsilon), m, v)
    for b, words in zip((4, 6, 7), wanted, strict=True):
        same(bank[b][:20], words)
    same(bank[5][:20], np.zeros_like(g) if clear else g)
    assert not any(section.state_beyond)


def test_no_update_without_one_pending_and_discarding_only_clears(loop, random):
    operands = {o: Operand(4 + o, 0, (1,)) for o in range(4)}
    update = Instruction(C.UPDATE, 0, (20,), None, operands, C.CLEAR)
    before = [loop.bank[b].copy() for b in (4, 5, 6, 7)]
    loop.run(update, section=Run(pending=0, rate=1))
    for b, words in zip((4, 5, 6, 7), before, strict=True):
        same(loop.bank[b], words)
    loop.run(update, section=Run(pending=2, rate=1, optimizer=2))
    before[1][:20] = 0
    for b, words in zip((4, 5, 6, 7), before, strict=True):
        same(loop.bank[b], words)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_update_tells_what_went_beyond(loop, random, which):
    limit = (2.0**63, 2.0**63, 2.0**127)[which]
    for b in (4, 5, 6, 7):
        loop.bank[b][:20] = 0
    loop.bank[(4, 6, 7)[which]][13, 5] = -limit if which < 2 else limit
    section = Run(0, 0, 0 if which == 0 else 2, 1.0, 1.0, 1.0, 1, 0.0, 0.0, 1.0, 1.0)
    operands = {o: Operand(4 + o, 0, (1,)) for o in range(4)}
    loop.run(Instruction(C.UPDATE, 0, (20,), None, operands), section=section)
    assert list(section.state_beyond) == [w == which for w in range(3)]


# Checks, addresses, bounds


@pytest.mark.parametrize("value, beyond", [(2.0**63, True), (-np.inf, True), (np.nan, True), (1.9 * 2.0**62, False)])
@pytest.mark.parametrize("check", [False, True])
def test_check_of_results(loop, random, value, beyond, check):
    flags = C.CHECK * check
    loop.bank[4][:4] = 0
    loop.bank[4][2, 7] = value
    loop.held[0] = 0
    loop.sums[1, 0] = 0
    loop.sums[1, 0, 3, 5] = loop.bank[4][2]
    copies = {
        "vector": Instruction(C.VECTOR, C.COPY, (4,), None, {0: Operand(4, 0, (1,)), 3: Operand(7)}, flags),
        "engine": Instruction(
            C.ENGINE_0, C.EXPAND, (4,), None, {2: Operand(5), 3: Operand(4, 0, (1,)), 4: Operand(7)}, flags
        ),
        "drain": Instruction(C.DRAIN_1, 0, (9,), None, {0: Operand(0, 0, (1,)), 4: Operand(7)}, flags, row=(0, 3)),
    }
    for name, instruction in copies.items():
        section = Run()
        loop.run(instruction, section=section)
        assert section.beyond == (beyond and check), name


def test_addresses_by_slices_of_the_tokens(loop, random):
    sample = Sample(tokens=9)
    slices = random.integers(0, 50, (C.SLICE_TABLES, C.SEQUENCE))
    for s in range(C.SLICE_TABLES):
        sample.slice[s][:] = slices[s].tolist()
    source, result = Operand(4, 7, (0, 1), slice=1, group=1), Operand(7, 300, (5, 1), slice=2, group=0)
    instruction = Instruction(C.VECTOR, C.COPY, (8, 3), None, {0: source, 3: result}, slices=(3, 2), slice_level=2)
    wanted = loop.bank[7].copy()
    for _, _, token, w in steps((8, 3)):
        wanted[300 + 5 * token + w + slices[2, token]] = loop.bank[4][7 + w + slices[3, 8 + token]]
    loop.run(instruction, sample=sample)
    same(loop.bank[7], wanted)


@pytest.mark.parametrize("tokens", [1, 5, 31])
def test_bounds_live_and_count_by_registers(loop, random, tokens):
    registers = [(3, 1, 2, 12), (0, 0, 0, 4), (0, 0, 1, 16)]
    n, live, count = (int(np.clip(tokens + o >> s, low, high)) for o, s, low, high in registers)
    operands = {0: Operand(4, 0, (1,)), 3: Operand(7, 0, (1,))}
    instruction = Instruction(
        *(C.VECTOR, C.COPY, (register(0),), (register(1),), operands), count=register(2), word_level=0
    )
    wanted = loop.bank[7].copy()
    for i in range(min(n, live)):
        wanted[i] = np.where(np.arange(LANES) < count, loop.bank[4][i], F(0))
    cycles = loop.run(instruction, sample=Sample(tokens=tokens), registers=registers)
    same(loop.bank[7], wanted)
    assert cycles == FIRST_START + n - 1 + AFTER_LAST


def test_addresses_with_negative_strides_count_modulo_their_bits(loop, random):
    operands = {0: Operand(4, 90, (-30, 7, -2)), 3: Operand(7, 65500, (40, 10, 1))}
    wanted = loop.bank[7].copy()
    for index in steps((3, 3, 5)):
        wanted_address = address(operands[3], index)
        if wanted_address < C.DEPTHS[7]:
            wanted[wanted_address] = loop.bank[4][address(operands[0], index)]
    loop.run(Instruction(C.VECTOR, C.COPY, (3, 3, 5), None, operands))
    same(loop.bank[7], wanted)


# Time

FIRST_START = C.FETCH - 1 + C.FETCH + 2
AFTER_LAST = 2 + C.LATENCY


def time(instructions):
    """The cycles of a run, by the rule of docs/processor.md."""
    start, last = [], []
    of_unit = [[] for _ in range(C.UNITS)]
    sent = -1
    for instruction in instructions:
        mine = of_unit[instruction.unit]
        sent += C.FETCH
        if len(mine) >= C.QUEUE:
            sent = max(sent, start[mine[-C.QUEUE]])
        begin = sent + C.FETCH + 2
        if mine:
            begin = max(begin, start[mine[-1]] + C.FETCH, last[mine[-1]] + 1)
        for unit, count in instruction.after_end.items():
            begin = max(begin, last[of_unit[unit][count - 1]] + 2) if count else begin
        for unit, count in instruction.after_drain.items():
            begin = max(begin, last[of_unit[unit][count - 1]] + C.LATENCY) if count else begin
        mine.append(len(start))
        start.append(begin)
        last.append(begin + max(int(np.prod(instruction.n)), 1) - 1)
    return max(last) + 2 + C.LATENCY


@pytest.mark.parametrize("seed", range(12))
def test_cycles_are_those_of_the_rule(loop, seed):
    random = np.random.default_rng(seed)
    instructions, counts = [], [0] * C.UNITS
    for _ in range(int(random.integers(1, 400))):
        unit = int(random.choice([C.VECTOR, C.ENGINE_0, C.DRAIN_1, C.SHUFFLE], p=[0.7, 0.1, 0.1, 0.1]))
        n = tuple(int(x) for x in random.integers(0 if random.random() < 0.1 else 1, 5, 3))
        after_end = {int(u): int(random.integers(0, counts[u] + 1)) for u in random.integers(0, C.UNITS, 1)}
        some = random.random() < 0.1
        after_drain = {int(u): int(random.integers(0, counts[u] + 1)) for u in random.integers(0, C.UNITS, int(some))}
        instructions.append(Instruction(unit, 0, n, after_end=after_end, after_drain=after_drain))
        counts[unit] += 1
    assert loop.run(*instructions) == time(instructions)


def test_a_program_that_waits_for_itself_is_stuck(loop):
    section = Run()
    loop.run(Instruction(C.VECTOR, C.COPY, (3,), after_end={C.ENGINE_0: 1}), section=section)
    assert section.stuck
    loop.run(Instruction(C.VECTOR, C.COPY, (3,)), section=section)
    assert not section.stuck


# The kernel: a program of one softmax layer that has but biases, in bank 4; gradients in bank 5.

CLASSES = 37
RATE, MOMENTS = F(0.5), 3
TARGET, SPREAD = 4, 5  # scalars: weights of the label and of every class


def softmax_program():
    def word_wise(operation, n=MOMENTS, **more):
        return {"unit": C.VECTOR, "operation": operation, "n": (n,), **more}

    def row(operation, b=None, result=None, flags=C.INTENT, **more):
        operands = {0: Operand(b or 4, 0, (1,)), 5: Operand(0, 7)} | ({3: Operand(result, 0, (1,))} if result else {})
        return Instruction(
            **word_wise(operation),
            operands=operands,
            count=CLASSES,
            flags=flags,
            depth=8,
            slot_level=3,
            word_level=3,
            **more,
        )

    def transfer(source, result):
        operands = {0: Operand(source, 0, (1,)), 3: Operand(result, 0, (1,))}
        return Instruction(**word_wise(C.COPY), operands=operands)

    parameters, gradients, first, second = (Operand(bank, 0, (1,)) for bank in (4, 5, 7, 8))
    operands = dict(enumerate((parameters, gradients, first, second)))
    updates = [Instruction(C.UPDATE, 0, (MOMENTS,), None, operands, C.CLEAR)]
    forward = [
        *updates,
        row(C.MAXIMUM, after_drain={C.UPDATE: 1}),
        row(C.EXPONENT, result=6, flags=C.INTENT | C.LOSS, immediates=(0, 0), after_drain={C.VECTOR: 1}),
    ]
    backward = [
        row(
            C.LOSS_BACK,
            6,
            5,
            flags=C.INTENT | C.CHECK,
            immediates=(register(SPREAD), register(TARGET)),
            after_drain={C.VECTOR: 2},
        )
    ]
    load = [transfer(C.IN_BANK, bank) for bank in (4, 7, 8)]
    store = [transfer(bank, C.OUT_BANK) for bank in (4, 7, 8)]
    clear = [Instruction(**word_wise(C.COPY), operands={3: Operand(5, 0, (1,))})]
    sections, instructions = {}, []
    for section, part in (
        (C.FORWARD, forward),
        (C.BACKWARD, backward),
        (C.FLUSH, updates),
        (C.LOAD_SECTION, load),
        (C.STORE_SECTION, store),
        (C.CLEAR_SECTION, clear),
    ):
        sections[section] = (len(instructions), len(part))
        instructions += part
    entries = np.zeros((3, C.FUNCTION_ENTRIES), F)
    at = 2 ** (np.arange(64) / 64)
    entries[:, :64] = at, at * np.log(2) / 64, at * (np.log(2) / 64) ** 2 / 2
    functions = [(0, C.EXPONENTIAL, 6, -80.0, 80.0, 64 / np.log(2))]
    program = Program(instructions, sections, constants=[1.0], functions=functions, function_table=entries)
    program.model, program.slice_limit = (32, CLASSES, 11), 100
    return program


def record(tokens=1, intent=3, rate=RATE, slices=0, slots=0, step=1.0, root=1.0, keep=1.0):
    words = np.zeros((1 + (C.SLICE_TABLES + 1) * C.SEQUENCE // LANES, LANES), np.int32)
    scalars = np.zeros(C.SCALARS, F)
    scalars[:4] = rate, step, root, keep
    scalars[TARGET], scalars[SPREAD] = 0.9, 0.1 / CLASSES
    words[0, :2] = tokens, intent
    words[0, 2:] = scalars.view(np.int32)
    words[1 : 1 + C.SLICE_TABLES * C.SEQUENCE // LANES] = slices
    words[1 + C.SLICE_TABLES * C.SEQUENCE // LANES :] = slots
    return words


class Trainer:
    """The kernel with the softmax program, and the same training in NumPy (double precision)."""

    def __init__(self, loop, random):
        self.loop = loop
        assert loop.load(softmax_program()) == C.DONE
        self.state = np.zeros((3 * MOMENTS, LANES), F)
        self.state[:MOMENTS].ravel()[:CLASSES] = random.normal(size=CLASSES)
        loop.call(C.LOAD, memory=self.state.copy())

    def train(self, records, command=None, optimizer=(0, 0.0, 0.0, 0.0)):
        results = np.zeros((5 * len(records), LANES), np.int32)
        self.loop.call(
            *(C.TRAIN if command is None else command, len(records), optimizer, np.concatenate(records), results)
        )
        return results.reshape(len(records), 5, LANES)

    def store(self):
        state = np.zeros_like(self.state)
        self.loop.call(C.STORE, memory=state)
        return state


@pytest.fixture
def trainer(loop, random):
    return Trainer(loop, random)


def test_description_and_digest(loop):
    names = ["CLOCK_MHZ", "LANES", "ROWS", "ENGINES", "SLOTS", "HELD_DEPTH", "UNITS", "LEVELS", "OPERANDS", "LATENCY"]
    constants = [value for name, value in vars(C).items() if name in CONFIG and name != "DEPTHS"]
    assert loop.widths.tolist() == constants + C.DEPTHS
    assert [vars(C)[name] for name in names] == loop.widths[: len(names)].tolist()
    digest = 2166136261
    for width in loop.widths.tolist():
        digest = (digest ^ width) * 16777619 % 2**32
    assert loop.digest == digest & 0x7FFFFFFF


def test_state_goes_in_and_out(trainer, random):
    np.testing.assert_array_equal(trainer.store(), trainer.state)
    assert not trainer.loop.bank[5][:MOMENTS].any()  # section CLEAR


def test_training_is_gradient_descent(trainer):
    intents = [3, 0, 36, 3, 3, 17]
    biases = trainer.state[:MOMENTS].ravel()[:CLASSES].astype(float)
    results = trainer.train([record(intent=intent) for intent in intents])
    for intent, result in zip(intents, results, strict=True):
        chances = np.exp(biases - biases.max())
        chances /= chances.sum()
        loss, intent_loss, slot_loss = result[0, 2:5].view(F)
        assert result[0, :2].tolist() == [C.DONE, biases.argmax()]
        assert loss == intent_loss == pytest.approx(-np.log(chances[intent]), rel=1e-5)
        assert slot_loss == 0
        target = 0.9 * (np.arange(CLASSES) == intent) + 0.1 / CLASSES
        biases -= RATE * (chances - target)
    assert set(results[1:, 0, 5] - results[0, 0, 5]) == {MOMENTS - 1}  # cycles: the first has no update to do
    stored = trainer.store()
    np.testing.assert_allclose(stored[:MOMENTS].ravel()[:CLASSES], biases, rtol=1e-4, atol=1e-6)
    assert not stored[:MOMENTS].ravel()[CLASSES:].any()


def test_a_chunk_is_as_good_as_call_after_call(trainer):
    records = [record(intent=intent) for intent in (1, 2, 3, 4)]
    trainer.train(records, optimizer=(1, 0.9, 0.0, 0.0))
    together = trainer.store()
    trainer.loop.call(C.LOAD, memory=trainer.state.copy())
    for one in records:
        trainer.train([one], optimizer=(1, 0.9, 0.0, 0.0))
    same(trainer.store(), together)


def test_predicting_changes_nothing(trainer):
    trained = trainer.train([record()], C.PREDICT)
    same(trainer.store(), trainer.state)
    assert trained[0, 0, 0] == C.DONE


BAD = {
    "BAD_LENGTH": {"tokens": 33},
    "BAD_TOKEN": {"slices": 100},
    "BAD_INTENT": {"intent": CLASSES},
    "BAD_SLOT": {"tokens": 2, "slots": 11},
    "BAD_LEARNING_RATE": {"rate": -1.0},
    "UPDATE_NOT_FINITE": {"rate": 2.0**30},
}


@pytest.mark.parametrize("status", BAD)
def test_the_first_bad_sample_ends_the_call(trainer, status):
    results = trainer.train([record(), record(**BAD[status]), record()])
    assert results[:, 0, 0].tolist() == [C.DONE, getattr(C, status), C.NOT_REACHED]
    after = trainer.store()
    trainer.loop.call(C.LOAD, memory=trainer.state.copy())
    trainer.train([record()])
    same(trainer.store(), after)
    assert not trainer.loop.bank[5][:MOMENTS].any()


def test_bad_optimizers_are_refused(trainer):
    for optimizer in ((3, 0.0, 0.0, 0.0), (1, 1.0, 0.0, 0.0), (2, 0.9, -0.1, 1e-8), (2, 0.9, 0.9, -1.0)):
        assert trainer.train([record()], optimizer=optimizer)[0, 0, 0] == C.BAD_OPTIMIZER
    assert trainer.train([record(step=2.0**61)], optimizer=(2, 0.9, 0.9, 1.0))[0, 0, 0] == C.UPDATE_NOT_FINITE
    assert trainer.train([record()], optimizer=(2, 0.9, 0.9, 1.0))[0, 0, 0] == C.DONE


@pytest.mark.parametrize("third, limit", [(0, 2.0**63), (1, 2.0**63), (2, 2.0**127)])
def test_a_state_beyond_its_limits_is_refused(trainer, third, limit):
    before = trainer.state.copy()
    before[third * MOMENTS + 2, 15] = limit
    trainer.loop.call(C.LOAD, memory=before.copy())
    for name, status in enumerate((third < 1, third < 2, True)):
        wanted = C.STATE_NOT_FINITE if status else C.DONE
        assert trainer.train([record(rate=0.0)], optimizer=(name, 0.5, 0.5, 1.0))[0, 0, 0] == wanted
    trainer.loop.call(C.LOAD, memory=trainer.state.copy())
    assert trainer.train([record()], optimizer=(2, 0.5, 0.5, 1.0))[0, 0, 0] == C.DONE


def test_a_gradient_or_loss_that_is_not_finite(trainer):
    huge = record()
    huge[0, 2 + TARGET] = np.array([2.0**63], F).view(np.int32)[0]
    assert trainer.train([huge])[0, 0, 0] == C.GRADIENT_NOT_FINITE
    same(trainer.store(), trainer.state)
    trainer.state[0, 3] = np.nan
    trainer.loop.call(C.LOAD, memory=trainer.state.copy())
    assert trainer.train([record()])[0, 0, 0] == C.LOSS_NOT_FINITE


def test_programs_that_do_not_fit_are_refused(loop):
    def status(change):
        image = softmax_program().image(loop.digest)
        change(image)
        return loop.call(C.LOAD_PROGRAM, len(image), image=image)[0, 0]

    def set_word(word, element, value):
        def change(image):
            image[1, 3 + C.SLICE_TABLES] -= value - image[word, element]
            image[word, element] = value

        return change

    assert status(lambda image: None) == C.DONE
    for word, element, value in (
        *((0, 0, 1), (0, 1, 99), (0, 2, 12345), (0, 3, 5), (0, 4, -1), (0, 5, 99), (1, 0, 65), (1, 0, 0)),
        *((IMAGE_WORDS, 0, 7), (0, 6, 2)),
    ):
        assert status(set_word(word, element, value)) == C.NO_PROGRAM, (word, element, value)
        results = np.zeros((5, LANES), np.int32)
        assert loop.call(C.TRAIN, 1, records=record(), results=results)[0, 0] == C.NO_PROGRAM
    assert status(lambda image: image.__setitem__((4, 4), 1)) == C.NO_PROGRAM  # the checksum


def test_a_program_that_is_stuck_says_so(loop):
    program = softmax_program()
    program.instructions[1].after_end = {C.ENGINE_0: 1}
    assert loop.load(program) == C.DONE
    results = np.zeros((5, LANES), np.int32)
    loop.call(C.TRAIN, 1, records=record(), results=results)
    assert results[0, 0] == C.PROGRAM_STUCK


def test_reach_covers_what_a_call_touches(loop):
    words = len(softmax_program().image(loop.digest))
    assert loop.load(softmax_program()) == C.DONE
    assert loop.reach(C.LOAD_PROGRAM, words) == [0, 5 * 64, 0, 64 * words]
    assert loop.reach(C.TRAIN, 7) == [64 * 7 * len(record()), 64 * 7 * 5, 0, 0]
    assert loop.reach(C.STORE) == [0, 0, 64 * 3 * MOMENTS, 0]
    assert loop.reach(C.DESCRIBE)[1] >= 64 * (1 + len(loop.widths) / LANES)
