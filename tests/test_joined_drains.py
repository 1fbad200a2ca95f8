"""Drains that the functional model executes with their ACCUMULATE: the bits of the loop, instruction by instruction."""

import ctypes

import numpy as np
import pytest

from bttlab.card.image import IMAGES
from bttlab.compiler.machine import M
from test_processor_execute import RATES, any_memories, any_sample, any_tables, check_memories

from processor_native import Call, Instruction, Native, Operand, Sample

Random = np.random.Generator
PROGRAMS = 800
REGION = 160  # vectors of the banks in which all operands lie, so that instructions often meet


@pytest.fixture(scope="module")
def loop() -> Native:
    return Native(*IMAGES[-1].flags)


@pytest.fixture(scope="module")
def fast() -> Native:
    return Native("-DBTTLAB_FAST", *IMAGES[-1].flags)


def accumulate(random: Random, engine: int, flags: int) -> Instruction:
    """Sums of one to three places, in one to sixteen rows; a quarter as steps that are not all active."""
    depth, width = int(random.integers(1, 5)), int(random.integers(1, 4))
    operands = {
        1: Operand(2, int(random.integers(REGION - 16)), (0, 0, width, 1), int(random.random() < 0.1)),
        2: Operand(16, int(random.integers(REGION - 8)), (0, 0, 1, 0)),
    }
    n = (1, 1, depth, width)
    active = n if random.random() < 0.75 else (1, 1, depth, max(1, width - 1))
    rows = int(random.choice([1, 3, 12, 13, 16]))
    return Instruction(
        *(engine, M.ACCUMULATE, n, operands, active),
        flags=flags,
        count=rows,
        depth_mask=7,
        accumulator_level=2,
        offset_tables=(0, 0),
    )


def drain(random: Random, of: Instruction, flags: int) -> Instruction:
    """Most often of whole rows of sums, to places that follow one another."""
    first = int(random.choice([0, 0, 0, of.count // 2, of.count - 1]))
    rows = int(random.choice([1, of.count // 2, of.count - first, of.count - first, 4]))
    width = int(random.choice([*[of.n[3]] * 7, 1, 2]))
    rows = max(rows, 1)
    spread, step = int(random.integers(width, width + 2)), int(random.choice([*[1] * 7, 2]))
    n = (1, 1, rows, width)
    operands = {
        0: Operand(0, int(random.random() < 0.1), (0, 0, 0, 1)),
        4: Operand(int(random.choice([2, 16, 17, 17, 17, 18])), int(random.integers(REGION)), (0, 0, spread, step)),
    }
    return Instruction(
        *(of.unit + M.DRAIN_0, 0, n, operands), flags=flags | of.flags & M.PONG, row_level=2, row_base=first
    )


def other(random: Random) -> Instruction:
    """An instruction of the vector unit that reads or writes where drains write."""
    n = (1, 1, 1, int(random.integers(1, 6)))
    stride = (0, 0, 0, 1)
    read, written = ((17, 18), (18, 17))[int(random.integers(2))]
    places = (int(place) for place in random.integers(REGION, size=2))
    operands = {0: Operand(read, next(places), stride), 3: Operand(written, next(places), stride), 5: Operand()}
    return Instruction(M.VECTOR, M.SUM, n, operands, depth_mask=15, accumulator_level=3)


def any_section(random: Random) -> list[Instruction]:
    """Return instructions of all kinds in an order in which drains follow what they move, or something else."""
    codes: list[Instruction] = []
    last: dict[tuple[int, int], Instruction] = {}
    for _ in range(int(random.integers(4, 14))):
        kind = random.random()
        key = int(random.integers(2)), int(random.choice([0, 0, M.PONG]))
        if kind < 0.35 or not last:
            last[key] = accumulate(random, *key)
            codes.append(last[key])
        elif kind < 0.8:
            of = last[key] if key in last else next(iter(last.values()))
            codes.append(drain(random, of, int(random.choice([0, M.CHECK]))))
        else:
            codes.append(other(random))
    return codes


def run_one_by_one(native: Native, codes: list[Instruction], sample: Sample) -> bool:
    """Execute each instruction in a run of its own; whether one overflowed."""
    flags = []
    for code in codes:
        call = Call(**RATES)
        native.run([code.vectors()], sample, call)
        flags.append(call.overflow)
    return any(flags)


def run_as_sections(native: Native, codes: list[Instruction], cut: int, sample: Sample) -> tuple[bool, np.ndarray]:
    """Execute instructions as a sample's two passes; whether one overflowed, and what `resolved` says of each."""
    native.program["instructions"] = len(codes)
    native.program["section"] = [(0, cut), (cut, len(codes) - cut), *[(len(codes), 0)] * 4]
    call, found = Call(**RATES), np.zeros((len(codes), 4), np.int32)
    try:
        native.run([code.vectors() for code in codes], sample, call)
        native.library.resolved(sample.tokens, ctypes.c_void_p(found.ctypes.data))
    finally:
        native.program["instructions"], native.program["section"] = 0, 0
    return call.overflow, found


def compare(loop: Native, fast: Native, filled: dict, codes: list[Instruction], cut: int, sample: Sample) -> np.ndarray:
    """Execute them on both from the same memories, and compare all; returns what `resolved` says of each."""
    for native in (loop, fast):
        for name, memory in native.memories.items():
            memory[:] = filled[name]
    overflow = run_one_by_one(loop, codes, sample)
    found, how = run_as_sections(fast, codes, cut, sample)
    assert found == overflow, codes
    check_memories(loop, fast, codes, how.tolist())
    return how


@pytest.mark.parametrize("is_large", [False, True], ids=["small", "beyond the limit"])
def test_random_sections_give_equal_bits(loop, fast, is_large):
    random = np.random.default_rng(is_large)
    tables, filled = any_tables(random), any_memories(random, loop)
    for native in (loop, fast):
        native.load(tables)
    if is_large:  # some sums overflow, or are not finite
        filled["bank 2"][:REGION][random.random((REGION, M.LANES)) < 0.02] = 3e38
    kinds = np.zeros(3, int)
    for _ in range(PROGRAMS):
        codes, sample = any_section(random), any_sample(random)
        how = compare(loop, fast, filled, codes, int(random.integers(len(codes) + 1)), sample)
        kinds += (how[:, 2] < 0).sum(), (how[:, 2] > 1).sum(), ((how[:, 2] > 0) & (how[:, 3] == 0)).sum()
    print("joined drains, ACCUMULATEs with two, sums not stored:", *kinds)
    assert (kinds > (PROGRAMS // 2, 30, 25)).all()


def test_sums_with_token_offsets_are_not_joined(fast):
    """Another sample's offsets may lie outside of the bank: then the ACCUMULATE is skipped, but not its drains."""
    random = np.random.default_rng(6)
    fast.load(any_tables(random))
    for token_offset in (0, 1):
        operands = {1: Operand(2, 0, (0, 0, 2, 1), token_offset), 2: Operand(16, 0, (0, 0, 1, 0))}
        first = Instruction(0, M.ACCUMULATE, (1, 1, 3, 2), operands, count=12, depth_mask=7, accumulator_level=2)
        moved = {0: Operand(0, 0, (0, 0, 0, 1)), 4: Operand(17, 0, (0, 0, 2, 1))}
        codes = [first, Instruction(M.DRAIN_0, 0, (1, 1, 12, 2), moved, row_level=2)]
        _, how = run_as_sections(fast, codes, 0, any_sample(random))
        assert how[:, 2].tolist() == ([0, 0] if token_offset else [1, -1])


def test_a_part_of_a_section_is_executed_one_by_one(loop, fast):
    """The sums are there after it, and the drain has not moved them yet."""
    random = np.random.default_rng(5)
    filled = any_memories(random, loop)
    operands = {1: Operand(2, 0, (0, 0, 2, 1)), 2: Operand(16, 0, (0, 0, 1, 0))}
    first = Instruction(0, M.ACCUMULATE, (1, 1, 3, 2), operands, count=12, depth_mask=7, accumulator_level=2)
    moved = {0: Operand(0, 0, (0, 0, 0, 1)), 4: Operand(17, 0, (0, 0, 2, 1))}
    codes = [first, Instruction(M.DRAIN_0, 0, (1, 1, 12, 2), moved, row_level=2), first]
    sample = any_sample(random)
    how = compare(loop, fast, filled, codes, 0, sample)
    assert how[:, 2].tolist() == [1, -1, 0] and how[0, 3] == 0
    for native in (loop, fast):
        for name, memory in native.memories.items():
            memory[:] = filled[name]
    fast.program["instructions"], fast.program["section"] = 3, [(0, 0), (0, 3), *[(3, 0)] * 4]
    try:
        fast.run([codes[0].vectors()], sample, Call(**RATES))
    finally:
        fast.program["instructions"], fast.program["section"] = 0, 0
    loop.run([codes[0].vectors()], sample, Call(**RATES))
    for name in ("sums", "bank 17"):
        np.testing.assert_array_equal(fast.memories[name].view(np.uint32), loop.memories[name].view(np.uint32))
