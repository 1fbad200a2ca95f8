"""The loop of the training processor: engines, drains, shuffle, update against NumPy's formulas; addresses; time."""

import numpy as np
import pytest

from processor_loop import (
    DEPTHS,
    LANES,
    C,
    Instruction,
    Loop,
    Operand,
    Run,
    Sample,
    address,
    register,
    same,
    steps,
    tree,
)

F = np.float32


@pytest.fixture(scope="module")
def loop():
    return Loop()


@pytest.fixture
def random(loop):
    random = np.random.default_rng(7)
    loop.fill(random)
    return random


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
        C.DRAIN_0, 0, (3, 30), None, {0: Operand(0, 0, (0, 1)), 4: Operand(7, 0, (30, 1))}, flags=C.SIDE, row=(2, 2)
    )
    loop.run(accumulate, move)
    same(loop.bank[7][:90], kept[2:5, :30].reshape(-1, LANES))


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
        if wanted_address < DEPTHS[7]:
            wanted[wanted_address] = loop.bank[4][address(operands[0], index)]
    loop.run(Instruction(C.VECTOR, C.COPY, (3, 3, 5), None, operands))
    same(loop.bank[7], wanted)


# Time

FIRST_START = C.FETCH - 1 + C.FETCH + 2
AFTER_LAST = 3 + C.LATENCY


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
        for unit, count in instruction.after_begin.items():
            begin = max(begin, start[of_unit[unit][count - 1]] + C.LATENCY) if count else begin
        mine.append(len(start))
        start.append(begin)
        last.append(begin + max(int(np.prod(instruction.n)), 1) - 1)
    return max(last) + AFTER_LAST


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
        instructions.append(Instruction(unit, 0, n, after_end=after_end))
        if random.random() < 0.5:
            instructions[-1].after_drain = after_drain
        else:
            instructions[-1].after_begin = after_drain
        counts[unit] += 1
    assert loop.run(*instructions) == time(instructions)


def test_a_program_that_waits_for_itself_is_stuck(loop):
    section = Run()
    loop.run(Instruction(C.VECTOR, C.COPY, (3,), after_end={C.ENGINE_0: 1}), section=section)
    assert section.stuck
    loop.run(Instruction(C.VECTOR, C.COPY, (3,)), section=section)
    assert not section.stuck
