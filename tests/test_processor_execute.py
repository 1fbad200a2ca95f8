"""The training processor's loop against the functional model, which shares the arithmetic of two units: equal bits.

The cycles of the loop are those of the rule in docs/processor.md.
"""

import itertools
from collections.abc import Callable
from copy import deepcopy

import numpy as np
import pytest

from bttlab.card.image import IMAGES, cpu_features
from bttlab.compiler.instruction import Instruction as CompiledInstruction
from bttlab.compiler.instruction import Level, encode
from bttlab.compiler.machine import M
from bttlab.compiler.shuffles import permutation_entries
from bttlab.compiler.timing import time_program

from processor_native import Call, Instruction, Native, Operand, Sample, Tables, packed

Random = np.random.Generator
PROGRAMS = 20  # of each operation
RATES = {"rest1": 0.1, "rest2": 0.001, "epsilon": 1e-8, "rate": 0.1, "step": 0.2, "root": 1.5, "keep": 0.99}
ROW_SUMS = {M.SUM, M.VARIANCE, M.NORM_SUMS, M.COLUMNS, M.MAXIMUM, M.EXPONENT, M.DOT}


def any_tables(random: Random) -> Tables:
    """Return tables filled at random: registers of small bounds, functions of both modes."""
    registers = zip(*(random.integers(*ends, M.REGISTERS) for ends in ((-3, 4), (0, 3), (0, 2), (2, 12))), strict=True)
    functions = [
        (0, 0, 0, -4.0, 3.9375, 16.0),
        (512, 1, 5, -20.0, 4.0, 46.166241),
        (600, 0, 0, -0.7, 8.0, 3.3),
    ]
    function_table = random.normal(size=(3, M.FUNCTION_ENTRIES)).astype(np.float32)
    function_table[:, 512:544] = random.uniform(1, 1.5, (3, 32))
    shuffle_table = random.integers(0, 2**16, (M.SHUFFLE_ENTRIES, 32))
    return Tables(list(registers), values(random, (M.CONSTANTS,)), functions, function_table, shuffle_table)


def values(random: Random, shape: tuple[int, ...]) -> np.ndarray:
    numbers = random.standard_normal(shape, np.float32)
    numbers[random.random(shape, np.float32) < 0.02] = 0.0
    return numbers


def any_sample(random: Random) -> Sample:
    sample = Sample(int(random.integers(1, 20)), int(random.integers(0, 40)), tuple(values(random, (14,)).tolist()))
    for table in sample.token_offset:
        table[:] = random.integers(0, 90, M.SEQUENCE).tolist()
    sample.slot[:] = random.integers(-1, 70, M.SEQUENCE).tolist()
    return sample


def any_operand(random: Random, n: tuple[int, ...], depth: int, where: int, token_offsets: bool = True) -> Operand:
    """An operand that stays inside its memory; often with strides as contractions have them."""
    while True:
        inner = list(itertools.accumulate(n[:0:-1], lambda a, b: a * b, initial=1))[::-1]
        choices = [[0, 0, 1, 2, weight, weight, int(random.integers(-40, 60))] for weight in inner]
        stride = tuple(int(random.choice(choice)) for choice in choices)
        sliced = token_offsets and random.random() < 0.2
        spans = [(bound - 1) * step for bound, step in zip(n, stride, strict=True)]
        low, high = sum(min(s, 0) for s in spans), sum(max(s, 0) for s in spans) + (90 if sliced else 0)
        if high - low < depth:
            base = int(random.integers(-low, depth - high))
            group = int(random.integers(0, 3))
            return Operand(where, base, stride, int(random.integers(1, 3)) if sliced else 0, group if sliced else 0)


def any_nest(random: Random, largest: int = 9) -> tuple[int, ...]:
    while True:
        n = tuple(int(random.choice([1, 2, 3, random.integers(1, largest), 13])) for _ in range(4))
        if np.prod(n) <= 120:
            return n


def any_code(random: Random, tables: Tables, sample: Sample, value: int) -> int:
    """A code that gives a value: a register if there is one that does."""
    for r in random.permutation(M.REGISTERS) if random.random() < 0.5 else ():
        offset, shift, low, high = tables.registers[r]
        if np.clip((sample.tokens + offset) >> shift, low, high) == value:
            return 1 << 15 | int(r)
    return value


def shortened(random: Random, n: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(random.integers(1, bound + 1)) if random.random() < 0.2 else bound for bound in n)


def bank_operands(
    random: Random, n: tuple[int, ...], reads: tuple[int, ...], writes: tuple[int, ...] = (), missing: float = 0.0
) -> dict[int, Operand]:
    """Operands in banks, no two reads and no two writes in one; in small regions, where reads and writes often meet."""
    operands = {}
    for which, only in ((reads, M.IN_BANK), (writes, M.OUT_BANK)):
        banks = random.permutation([only, 2, 16, 17, 18]).tolist()
        for o in which:
            if random.random() >= missing:
                operands[o] = any_operand(random, n, M.TRANSFER_VECTORS, banks.pop())
    return operands


def engine(random: Random, operation: int) -> Instruction:
    n = any_nest(random)
    e = int(random.integers(0, 2))
    operands = bank_operands(random, n, (1, 2, 3), (4,))
    for o in (3, 4):
        if random.random() < 0.2:
            del operands[o]
    operands[0] = any_operand(random, n, M.OPERAND_BUFFER_DEPTH, e)
    if random.random() < 0.3:
        operands[5] = any_operand(random, n, M.OPERAND_BUFFER_DEPTH, int(random.integers(0, 2)))
    if random.random() < 0.3 and 3 in operands and operands[3].where != M.IN_BANK:
        operands[4] = operands[3]
    active = shortened(random, n)
    level = int(random.integers(0, 3))
    mask, accumulator_level = int(random.integers(0, 16)), int(random.choice([0, 1, 2, 3, 7]))
    if operation == M.ACCUMULATE and random.random() < 0.7:
        mask, accumulator_level = (1 << level + 1) - 1, level
    if operation == M.REDUCE:
        level = int(random.integers(0, 4))
        mask = 1 << level
        if random.random() < 0.8:
            accumulator_level = level
            active = tuple(bound if j == level else low for j, (bound, low) in enumerate(zip(n, active, strict=True)))
    return Instruction(
        *(e, operation, n, operands, active),
        flags=int(random.choice([0, M.CHECK, M.PONG, M.ONE, M.PONG | M.ONE])),
        count=int(random.choice([12, random.integers(0, 18)])),
        row_level=int(random.integers(0, 4)),
        row_base=int(random.integers(-3, 8)),
        depth_mask=mask,
        accumulator_level=accumulator_level,
        offset_tables=tuple(random.integers(0, M.OFFSET_TABLES, 2).tolist()),
        offset_level=int(random.integers(0, 4)),
    )


def sums_without_depth(random: Random, operation: int) -> Instruction:
    """Each step begins sums of its own."""
    code = engine(random, operation)
    code.depth_mask, code.accumulator_level = 0, 7
    return code


def terms_around_a_level(random: Random, operation: int) -> Instruction:
    """Terms of an ACCUMULATE whose addresses go on along the outermost level, with another level between."""
    first, _, last, _ = n = tuple(int(random.integers(2, 5)) for _ in range(4))
    e = int(random.integers(0, 2))
    operands = {
        1: Operand(2, int(random.integers(0, 100)), (last, first * last, 1, 100)),
        2: Operand(16, int(random.integers(0, 100)), (last, int(random.integers(20, 40)), 1, 0)),
    }
    return Instruction(e, operation, n, operands, count=12, depth_mask=7, accumulator_level=2)


def line_of_points(random: Random, operation: int) -> Instruction:
    """Points of a REDUCE along a level around another one: the sums that stay lie some slots apart."""
    _, _, line, inner = n = tuple(int(random.integers(a, b)) for a, b in ((1, 4), (2, 8), (6, 10), (2, 4)))
    e = int(random.integers(0, 2))
    operands = {
        0: Operand(e, int(random.integers(0, 500)), (0, inner, 0, 1)),
        1: Operand(2, int(random.integers(0, 100)), (0, line, 1, 100)),
        4: Operand(16, int(random.integers(0, 100)), (line * inner, 0, inner, 1)),
    }
    flags, count = (
        int(random.choice([0, M.CHECK, M.PONG, M.ONE])),
        int(random.choice([12, random.integers(1, 17)])),
    )
    return Instruction(e, operation, n, operands, flags=flags, count=count, depth_mask=2, accumulator_level=1)


def drain(random: Random, _operation: int) -> Instruction:
    n = any_nest(random)
    operands = bank_operands(random, n, (), (4,))
    operands[0] = any_operand(random, n, M.ACCUMULATORS, 0, token_offsets=False)
    return Instruction(
        *(M.DRAIN_0 + int(random.integers(0, 2)), 0, n, operands, shortened(random, n)),
        flags=int(random.choice([0, M.CHECK, M.PONG])),
        row_level=int(random.integers(0, 4)),
        row_base=int(random.integers(-3, 8)),
    )


def vector(random: Random, operation: int) -> Instruction:
    n = any_nest(random)
    statistic = Operand(int(random.integers(0, 3)), int(random.integers(0, M.STATISTICS - 160)))
    sums_up = operation in ROW_SUMS
    active = n if sums_up and random.random() < 0.8 else shortened(random, n)
    level = int(random.integers(0, 4))
    operands = bank_operands(random, n, (0, 1, 2), (3, 4), missing=0.15) | {5: statistic}
    return Instruction(
        *(M.VECTOR, operation, n, operands, active),
        flags=int(random.choice([0, M.CHECK, M.LOSS, M.LOSS | M.INTENT, M.INTENT])),
        count=int(random.choice([0, random.integers(1, 40)])),
        immediate=(int(random.integers(0, 64)), int(random.choice([0, 1 << 15])) | int(random.integers(0, 14))),
        depth_mask=(1 << level + 1) - 1,
        accumulator_level=level,
        vector_level=int(random.integers(0, 4)),
        offset_tables=tuple(random.integers(0, M.OFFSET_TABLES, 2).tolist()),
        offset_level=int(random.integers(0, 4)),
    )


def sums_of_columns(random: Random, operation: int) -> Instruction:
    """COLUMNS with rows along the outermost level, whose terms are all active."""
    n = (int(random.integers(2, 6)), *(int(random.integers(1, 5)) for _ in range(3)))
    size = int(np.prod(n[1:]))
    operands = {
        o: Operand(bank, int(random.integers(0, 60)), (size, n[2] * n[3], n[3], 1)) for o, bank in ((0, 2), (1, 16))
    }
    results = {o: Operand(bank, 5, (0, n[2] * n[3], n[3], 1)) for o, bank in ((3, 17), (4, 18))}
    for o in [[3], [4], [3, 4]][int(random.integers(3))]:
        operands[o] = results[o]
    return Instruction(
        *(M.VECTOR, operation, n, operands),
        flags=int(random.choice([0, M.CHECK])),
        count=int(random.choice([0, random.integers(1, 40)])),
        immediate=(0, 0),
        depth_mask=1,
        accumulator_level=0,
        vector_level=int(random.integers(1, 4)),
    )


def shuffle(random: Random, _operation: int) -> Instruction:
    n = (int(random.integers(1, 5)), *any_nest(random, 12)[1:])
    operands = bank_operands(random, n, (1,), (4,))
    # An entry a step, the same in all blocks.
    strides = (0, n[2] * n[3], n[3], 1)
    operands |= {
        o: Operand(0, int(random.integers(0, M.SHUFFLE_ENTRIES - n[1] * n[2] * n[3])), strides) for o in (0, 2)
    }
    if random.random() < 0.5:
        operands[5] = any_operand(random, n, M.OPERAND_BUFFER_DEPTH, int(random.integers(0, 2)), token_offsets=False)
    return Instruction(
        *(M.SHUFFLE, 0, n, operands, (n[0], *shortened(random, n)[1:])),
        flags=int(random.choice([0, M.CHECK])),
        count=int(random.integers(0, n[3] + 2)),
        row_level=int(random.integers(0, 4)),
        row_base=int(random.integers(-3, 8)),
    )


def shuffle_with_entries_of_blocks(random: Random, operation: int) -> Instruction:
    """A shuffle whose blocks are permuted in different ways, at places that differ."""
    n = (int(random.integers(2, 5)), 1, int(random.integers(1, 4)), int(random.integers(2, 6)))
    size = n[2] * n[3]
    operands = {
        0: Operand(0, 0, (size, 0, n[3], 1)),
        1: Operand(2, int(random.integers(0, 100)), (size, 0, n[3], 1)),
        2: Operand(0, n[0] * size, (size, 0, n[3], 1)),
        4: Operand(16, int(random.integers(60, 100)), (size, 0, 1, n[2])),
    }
    return Instruction(M.SHUFFLE, operation, n, operands, count=n[3])


def fill_columns(random: Random, table: np.ndarray, code: Instruction) -> None:
    """Write a shuffle's entries: each active step writes another place of each column, and all are read."""
    blocks, *n = code.n
    steps = np.arange(np.prod(n)).reshape(n)
    active = steps[tuple(slice(0, x) for x in code.active[1:])].ravel()
    for block in range(blocks):
        places = np.array([random.permutation(M.SHUFFLE_VECTORS)[: len(active)] for _ in range(M.LANES)])
        first_in = code.operands[0].base + block * code.operands[0].stride[0]
        first_out = code.operands[2].base + (block + 1) * code.operands[2].stride[0]
        for s, step in enumerate(active):
            table[first_in + step, : M.LANES] = 1 << 15 | random.integers(0, M.LANES, M.LANES) | places[:, s] << 4
        for step in steps.ravel():
            read = [random.choice(column) for column in places]
            enable = (random.random(M.LANES) < 0.9).astype(int) << 15
            table[first_out + step, M.LANES :] = enable | random.integers(0, M.LANES, M.LANES) | np.array(read) << 4


def swapped_axes(rows: int, columns: int, width: int, *, is_flat: bool) -> tuple[np.ndarray, int]:
    """Return the permutation of an array that swaps rows and columns of `width` elements, and its number of vectors in.

    Rows begin with a vector; those of the result follow each other if `is_flat`.
    """
    padded = -(-columns * width // M.LANES) * M.LANES
    elements = np.arange(rows * padded).reshape(rows, padded)[:, : columns * width].reshape(rows, columns, width)
    swapped = elements.swapaxes(0, 1).reshape(1 if is_flat else columns, -1)
    out = np.full((len(swapped), -(-swapped.shape[1] // M.LANES) * M.LANES), -1)
    out[:, : swapped.shape[1]] = swapped
    return out.reshape(-1, M.LANES), rows * padded // M.LANES


def update(random: Random, _operation: int) -> Instruction:
    n = any_nest(random)
    banks = random.permutation([2, 16, 17, 18]).tolist()
    operands = {o: any_operand(random, n, M.TRANSFER_VECTORS, bank) for o, bank in enumerate(banks)}
    return Instruction(M.UPDATE, 0, n, operands, shortened(random, n), flags=int(random.choice([0, M.CLEAR])))


CASES: list[tuple[str, Callable[[Random, int], Instruction], int]] = [
    *(
        (f"engine {name}", engine, o)
        for o, name in ((M.EXPAND, "expand"), (M.ACCUMULATE, "accumulate"), (M.REDUCE, "reduce"))
    ),
    ("engine sums without depth", sums_without_depth, M.ACCUMULATE),
    ("engine terms around a level", terms_around_a_level, M.ACCUMULATE),
    ("engine line of points", line_of_points, M.REDUCE),
    ("drain", drain, 0),
    *((f"vector {o}", vector, o) for o in range(M.SOFTMAX_BACK + 1)),
    ("vector sums of columns", sums_of_columns, M.COLUMNS),
    ("shuffle", shuffle, 0),
    ("shuffle with entries of blocks", shuffle_with_entries_of_blocks, 0),
    ("update", update, 0),
]


@pytest.fixture(scope="module")
def loop() -> Native:
    return Native(*IMAGES[-1].flags)


@pytest.fixture(
    scope="module",
    params=[*(pytest.param(image, marks=pytest.mark.long) for image in IMAGES[:-1]), IMAGES[-1]],
    ids=lambda image: image.name,
)
def fast(request) -> Native:
    if not request.param.features <= cpu_features():
        pytest.skip("this processor cannot run it")
    return Native("-DBTTLAB_FAST", *request.param.flags)


@pytest.mark.parametrize(("make", "operation"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_random_instructions_give_equal_bits(loop, fast, make, operation):
    random = np.random.default_rng(operation)
    tables, filled = any_tables(random), any_memories(random, loop)
    for native in (loop, fast):
        native.load(tables)
    for _ in range(PROGRAMS):
        code = make(random, operation)
        sample = any_sample(random)
        if code.unit == M.SHUFFLE:
            fill_columns(random, tables.shuffle_table, code)
            for native in (loop, fast):
                native.load(tables)
        rows = code.count
        code.n, code.active = (tuple(any_code(random, tables, sample, x) for x in xs) for xs in (code.n, code.active))
        code.count = any_code(random, tables, sample, code.count)
        call = {"optimizer": int(random.integers(3)), "pending": int(random.choice(3, p=(0.25, 0.5, 0.25)))}
        call["beta1"] = call["beta2"] = float(random.choice([0.9, 1.0]))  # 1: amid an update of several samples
        check(loop, fast, filled, code, rows, sample, **call)


# Rows, columns and width of arrays whose axes programs swap; the last ones only move vectors, or lanes by four.
AXES = (
    (8, 96, 1),
    (96, 8, 1),
    (8, 12, 1),
    (12, 8, 1),
    (8, 16, 1),
    (12, 15, 1),
    (4, 24, 2),
    (3, 5, 16),
    (8, 1, 12),
    (1, 8, 12),
)


@pytest.mark.parametrize("is_flat", [False, True], ids=["rows", "flat"])
@pytest.mark.parametrize("axes", AXES, ids=str)
def test_swapped_axes_give_equal_bits(loop, fast, axes, is_flat):
    random = np.random.default_rng(sum(axes))
    permutation, vectors_in = swapped_axes(*axes, is_flat=is_flat)
    tables, filled = any_tables(random), any_memories(random, loop)
    into, out = permutation_entries(permutation, vectors_in)
    most = max(len(into), len(out))
    tables.shuffle_table[: len(into), : M.LANES] = into
    tables.shuffle_table[: len(out), M.LANES :] = out
    for native in (loop, fast):
        native.load(tables)
    blocks = 3
    entries, blocks_in, blocks_out = (0, 0, 0, 1), (len(into), 0, 0, 1), (len(out), 0, 0, 1)
    to_bank, to_buffer = Operand(17, 7, blocks_out), Operand(1, 40, (0, 0, 0, 1))
    # To a bank, to an operand buffer, to both; to where it comes from; several vectors out to a place.
    for base, written in (
        (2, {4: to_bank}),
        (2, {5: to_buffer}),
        (2, {4: to_bank, 5: to_buffer}),
        (17, {4: to_bank}),
        (2, {4: Operand(17, 7, (3, 0, 0, 0))}),
    ):
        operands = {0: Operand(0, 0, entries), 1: Operand(base, 3, blocks_in), 2: Operand(0, 0, entries), **written}
        n, active = (blocks + 1, 1, 1, most), (blocks + 1, 1, 1, len(into))
        check(loop, fast, filled, Instruction(M.SHUFFLE, 0, n, operands, active, count=len(out)), 0, any_sample(random))


def any_memories(random: Random, native: Native) -> dict[str, np.ndarray]:
    """Return contents for all memories at random, zeros of both signs among the floats."""
    return {
        name: values(random, memory.shape) if memory.dtype == np.float32 else np.zeros_like(memory)
        for name, memory in native.memories.items()
    }


def check(loop, fast, filled, code, rows, sample, again=False, **arguments) -> tuple[bool, ...]:
    """Run an instruction on both, from the same memories; compare all of them and the flags, and return these."""
    flags = []
    for native in (loop, fast):
        call = Call(**RATES | arguments)
        for name, memory in native.memories.items():
            memory[:] = filled[name]
        native.run([code.vectors()], sample, call, again)
        flags.append((call.overflow, *call.state_overflow))
        if code.operation == M.REDUCE and code.unit in (M.ENGINE_0, M.ENGINE_1):
            # Nothing reads the sums that a REDUCE leaves in rows that are not in use: the functional model makes none.
            native.memories["sums"][code.unit, 1 if code.flags & M.PONG else 0, rows:] = 0
    check_memories(loop, fast, code)
    assert flags[0] == flags[1], code
    return flags[0]


def check_memories(loop: Native, fast: Native, *about: object) -> None:
    """Compare all memories bit by bit, but for those of a NaN."""
    for name, memory in loop.memories.items():
        same = fast.memories[name].view(np.uint32) == memory.view(np.uint32)
        if memory.dtype == np.float32 and not same.all():
            same |= np.isnan(memory) & np.isnan(fast.memories[name])
        assert same.all(), (name, np.argwhere(~same)[:8].tolist(), *about)


@pytest.mark.parametrize("operation", [M.EXPAND, M.ACCUMULATE, M.REDUCE])
def test_a_kept_instruction_takes_the_token_offsets_of_each_sample(loop, fast, operation):
    random = np.random.default_rng(operation)
    filled = any_memories(random, loop)
    for _ in range(5 * PROGRAMS):
        code, sample = engine(random, operation), any_sample(random)
        if not any(operand.token_offset for operand in code.operands.values()):
            continue
        for native in (loop, fast):
            native.program["instructions"] = 1  # the functional model keeps those of a program
        try:
            for again in (False, True, True):
                sample = deepcopy(sample)
                for table in sample.token_offset:
                    table[:] = random.integers(0, 90, M.SEQUENCE).tolist()
                check(loop, fast, filled, code, code.count, sample, again=again)
        finally:
            for native in (loop, fast):
                native.program["instructions"] = 0


@pytest.mark.long
def test_a_fold_keeps_negative_zero(loop, fast):
    """A sum begins with +0; so -0 can only come from sums that are all -0 already: a second pass over a kept slot."""
    random = np.random.default_rng(7)
    filled = any_memories(random, loop)
    filled["operand_buffer"][0, :, 0], filled["bank 2"][0], filled["sums"][0, 0] = 1.0, -0.0, -0.0
    operands = {0: Operand(0), 1: Operand(2), 4: Operand(16)}
    code = Instruction(M.ENGINE_0, M.REDUCE, (1, 1, 1, 1), operands, count=16, depth_mask=8)
    check(loop, fast, filled, code, 16, any_sample(random))
    assert np.signbit(loop.memories["bank 16"][0]).all()


@pytest.mark.parametrize("results", [(3,), (4,), (3, 4)], ids=str)
def test_columns_check_the_sums_that_they_write(loop, fast, results):
    random = np.random.default_rng(8)
    filled = any_memories(random, loop)
    filled["bank 2"][:8], filled["bank 16"][:8] = 2.0**62, 2.0**-62  # a sum of a is 2^63, one of a b is 2
    operands = {0: Operand(2, 0, (0, 0, 1, 0)), 1: Operand(16, 0, (0, 0, 1, 0))} | {o: Operand(14 + o) for o in results}
    code = Instruction(M.VECTOR, M.COLUMNS, (1, 1, 2, 1), operands, flags=M.CHECK, depth_mask=7, accumulator_level=2)
    assert check(loop, fast, filled, code, 0, any_sample(random))[0] == (4 in results)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(12))
def test_cycles_of_random_programs_are_those_of_the_rule(loop, seed):
    random = np.random.default_rng(seed)
    instructions, counts = [], [0] * M.UNITS
    for _ in range(int(random.integers(1, 400))):
        unit = int(random.choice([M.VECTOR, M.ENGINE_0, M.DRAIN_1, M.SHUFFLE], p=[0.7, 0.1, 0.1, 0.1]))
        bounds = random.integers(0 if random.random() < 0.1 else 1, 5, 3).tolist()
        code = CompiledInstruction(unit, 0, tuple(Level(name, n) for name, n in zip("abc", bounds, strict=True)), {})
        waits = [code.after_end]
        if random.random() < 0.1:
            waits.append(code.after_drain if random.random() < 0.5 else code.after_begin)
        for after in waits:
            other = int(random.integers(len(counts)))
            after[other] = int(random.integers(counts[other] + 1))
        instructions.append(code)
        counts[unit] += 1
    encoded = [packed(encode(code, int, int)) for code in instructions]
    assert loop.run(encoded, any_sample(random), Call(**RATES)) == time_program(instructions, 1).cycles
