"""The loop of the training processor: units side by side, and the cycle of every step.

What single instructions compute, tests/test_processor_execute.py compares with an interpreter in NumPy.
"""

import numpy as np
import pytest

from processor_loop import LANES, C, Instruction, Loop, Operand, same

from processor_native import NativeCall

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def loop():
    return Loop()


@pytest.fixture
def random(loop):
    random = np.random.default_rng(7)
    loop.fill(random)
    return random


def test_drain_reads_one_ping_pong_buffer_while_the_engine_adds_to_the_other(loop, random):
    kept = loop.sums[0, 1].copy()
    accumulate = Instruction(
        C.ENGINE_0,
        C.ACCUMULATE,
        (20, 9),
        None,
        {1: Operand(4), 2: Operand(5)},
        count=4,
        depth=0b0100,
        accumulator_level=2,
    )
    move = Instruction(
        C.DRAIN_0, 0, (3, 30), None, {0: Operand(0, 0, (0, 1)), 4: Operand(7, 0, (30, 1))}, flags=C.PONG, row=(2, 2)
    )
    loop.run(accumulate, move)
    same(loop.bank[7][:90], kept[2:5, :30].reshape(-1, LANES))


def test_a_fold_keeps_negative_zero(loop, random):
    loop.operand_buffer[0, :, 0] = 1
    loop.bank[4][0] = -0.0
    # A sum begins with +0; so -0 can only come from sums that are all -0 already: here a second pass over a kept slot.
    loop.sums[0, 0] = -0.0
    operands = {0: Operand(0), 1: Operand(4), 4: Operand(8)}
    loop.run(Instruction(C.ENGINE_0, C.REDUCE, (1,), None, operands, count=16, depth=0b1000))
    assert np.signbit(loop.bank[8][0]).all()


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
    section = NativeCall()
    loop.run(Instruction(C.VECTOR, C.COPY, (3,), after_end={C.ENGINE_0: 1}), section=section)
    assert section.stuck
    loop.run(Instruction(C.VECTOR, C.COPY, (3,)), section=section)
    assert not section.stuck
