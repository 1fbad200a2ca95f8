"""The check of hazards: programs of the compiler have none; planted faults are reported."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from bttlab.card.processor import sample_records
from bttlab.compiler.access import accesses, adds_up
from bttlab.compiler.builder import Builder
from bttlab.compiler.errors import ProgramError
from bttlab.compiler.hazards import (
    Hazard,
    check_program,
    find_hazards,
    loaded_vectors,
    token_id_sets,
    unchecked_gradients,
)
from bttlab.compiler.instruction import BANK, OPERANDS, Instruction, Level, Memory, at, value_of
from bttlab.compiler.machine import M
from bttlab.compiler.ops.embedding import F1
from bttlab.compiler.program import Options, Program, compile
from bttlab.model import ModelConfig, Optimizer

from processor_native import NativeProcessor
from training_processor import SMALL, equal_bits, fresh_processor, some_parameters, some_samples

LENGTHS = (5, 17)  # of the samples that wrong programs are run on: one block of tokens, and a second
WRONG = 4  # programs of each kind, or more until two were caught


@pytest.fixture(scope="module")
def small() -> Program:
    return compile(SMALL, Options("mixed"))


def hazards_of(program: Program, length: int, updates: bool = True, ids=None) -> list[Hazard]:
    """Return the hazards of a sample of this length."""
    if ids is None:
        ids = (
            some_samples(SMALL, LENGTHS).tokens[LENGTHS.index(length), :length] if length in LENGTHS else range(length)
        )
    offsets = program.token_table.token_offsets(np.asarray(ids))
    return find_hazards(program.sample, length, offsets, updates, loaded=loaded_vectors(program, updates))


def test_a_small_model(small):
    reported = []
    assert check_program(small, (2, 17), lambda *progress: reported.append(progress)) == []
    assert reported == [(2, 0), (17, 0)]


@pytest.mark.long
@pytest.mark.parametrize("flow", ["bidirectional", "auto"])
def test_the_papers_model(flow):
    assert check_program(compile(ModelConfig(encoders=2), Options(flow)), (2, 17)) == []


@pytest.mark.parametrize(("flow", "sums"), [("right_to_left", False), ("mixed", True)])
def test_a_bank_has_the_vector_behind_each_stream(flow, sums):
    """The last step of a REDUCE, the fold, requests it; the machine reports a vector that no bank has."""
    program = compile(ModelConfig(encoders=2), Options(flow, sums=sums))
    for instruction in (*program.sample, *program.flush):
        for access in accesses(instruction):
            if instruction.is_reduce and access.operand == 1:
                behind = access.interval(program.offset_span)[1]
                assert behind < M.banks[access.memory.number].depth


# ---- wrong programs ------------------------------------------------------------------------------------------------


def test_every_vector_that_load_leaves_out_is_reported(small):
    offsets = np.zeros((M.OFFSET_TABLES, 1), int)
    for n in range(len(small.load)):
        wrong = replace(small, load=small.load[:n] + small.load[n + 1 :])
        found = find_hazards(wrong.flush, 1, offsets, loaded=loaded_vectors(wrong, True))
        assert found and {hazard.kind for hazard in found} == {"unwritten"}


def test_every_gradient_without_its_check_is_reported(small):
    assert unchecked_gradients(small) == []
    checked = [n for n, instruction in enumerate(small.sample) if instruction.flags & M.CHECK]
    for n in checked[::4]:
        texts = unchecked_gradients(changed(small, n, flags=small.sample[n].flags & ~M.CHECK))
        assert texts and all(f"instruction {n} " in text for text in texts)


def test_equal_tokens_find_what_random_ones_do_not(small):
    """A slice's gradient is read again before it is there if the next token has the same slice, and only then."""
    n = next(
        n
        for n, i in enumerate(small.backward, len(small.forward))
        if any(o.token_offset and o.token_offset.table == F1 for m, o in i.operands.items() if m in i.writes())
    )
    tokens, *rest = small.sample[n].loops
    tight = [loop._replace(bound=loop.active_bound) for loop in rest]
    wrong = changed(small, n, loops=(tokens, *tight))
    rows, stride = SMALL.vocabulary_size, small.token_table.stride
    equal = token_id_sets(rows, stride, 3, np.random.default_rng(0))["all equal"]
    assert any(h.instructions == (n, n) for h in hazards_of(wrong, 3, ids=equal))
    assert not any(h.instructions == (n, n) for h in hazards_of(wrong, 3, ids=np.arange(3) * stride))


Wrong = tuple[Program, int] | None
Make = Callable[[np.random.Generator, Program], Wrong]


def changed(program: Program, n: int, **values) -> Program:
    """The program with another instruction in place n of a sample's."""
    instructions = list(program.sample)
    instructions[n] = replace(instructions[n], **values)
    return in_order(program, instructions)


def in_order(program: Program, instructions: list[Instruction]) -> Program:
    count = len(program.forward)
    return replace(program, forward=instructions[:count], backward=instructions[count:])


def waits_of(instruction: Instruction) -> list[tuple[str, int]]:
    return [
        (k, u)
        for k in ("after_end", "after_drain", "after_begin")
        for u in range(M.UNITS)
        if getattr(instruction, k)[u]
    ]


def without_its_waits(random, program) -> Wrong:
    """An instruction waits for nobody: it reads what is not there yet, or overwrites what is still to be read."""
    n = int(random.choice([n for n, i in enumerate(program.sample) if waits_of(i)]))
    return changed(program, n, **{kind: [0] * M.UNITS for kind, _ in waits_of(program.sample[n])}), n


def with_a_lower_wait(random, program) -> Wrong:
    """It waits for the instruction before the one that it needs."""
    n = int(random.choice([n for n, i in enumerate(program.sample) if waits_of(i)]))
    kinds = waits_of(program.sample[n])
    kind, unit = kinds[random.integers(len(kinds))]
    counts = list(getattr(program.sample[n], kind))
    counts[unit] -= 1
    return changed(program, n, **{kind: counts}), n


def with_an_operand_elsewhere(random, program) -> Wrong:
    """An operand's vectors lie elsewhere: nobody waits for who writes or reads them there."""
    n = int(random.integers(len(program.sample)))
    instruction = program.sample[n]
    numbers = [m for m, o in instruction.operands.items() if o.memory and o.memory.kind in (BANK, OPERANDS)]
    if not numbers:
        return None
    number = int(random.choice(numbers))
    operand = instruction.operands[number]
    depth = M.banks[operand.number].depth if operand.is_in_bank else M.OPERAND_BUFFER_DEPTH
    low, high = next(a for a in accesses(instruction) if a.operand == number).interval(program.offset_span)
    base = int(operand.base + random.integers(-low, depth - high + 1))
    operands = instruction.operands | {number: operand._replace(base=base)}
    return changed(program, n, operands=operands), n


def with_two_swapped(random, program) -> Wrong:
    """Two neighbours on different units change places, of which the second reads what the first writes."""
    place, candidates = [0] * M.UNITS, []
    for n, (one, other) in enumerate(itertools.pairwise(program.sample)):
        place[one.unit] += 1
        if one.unit != other.unit and place[one.unit] in (other.after_drain[one.unit], other.after_begin[one.unit]):
            candidates.append(n)
    n = int(random.choice(candidates))
    instructions = list(program.sample)
    instructions[n : n + 2] = instructions[n + 1], instructions[n]
    return in_order(program, instructions), n


def runs_alike(trainer_libraries, folder, program: Program) -> bool:
    """Return True if the loop gives the bits of the functional model, which executes one instruction at a time."""
    optimizer = Optimizer("momentum")
    samples = some_samples(program.config, LENGTHS)
    records = sample_records(program, samples, np.full(len(LENGTHS), 0.01), optimizer)
    outcomes = []
    for name in ("loop", "fast"):
        with fresh_processor(trainer_libraries[name], folder) as processor:
            processor.load_program(program)
            processor.load(some_parameters(program.config))
            results = processor.train(records, optimizer)
            outcomes.append(({f: results[f] for f in ("status", "intent", "loss", "slots")}, *processor.store()))
    return all(equal_bits(one, other) for one, other in zip(*outcomes, strict=True))


@pytest.mark.long
@pytest.mark.parametrize("make", [without_its_waits, with_a_lower_wait, with_an_operand_elsewhere, with_two_swapped])
def test_wrong_programs_are_caught(trainer_libraries, small, tmp_path, make: Make):
    """Every program whose bits differ between the loop and in-order execution is reported.

    Not every wrong program differs: a wait may follow from others. The loop knows nothing of hazards.
    """
    random = np.random.default_rng(15)  # of each kind two of the first four are caught: no more have to be tried
    harmful = caught = tried = 0
    while tried < WRONG or (caught < 2 and tried < 10 * WRONG):
        wrong = make(random, small)
        if wrong is None:
            continue
        tried += 1
        program, n = wrong
        reports = [t for k, length in enumerate(LENGTHS) for t in hazards_of(program, length, k > 0)]
        alike = runs_alike(trainer_libraries, tmp_path, program)
        assert alike or reports, f"{make.__name__}: instruction {n} does harm, and nothing is reported"
        harmful += not alike
        caught += bool(reports)
    assert caught >= max(2, harmful)


def test_two_operands_in_one_bank_are_always_caught(small):
    """In a step that reads both, the bank's one load is asked twice, whatever else happens."""
    pairs = [
        (n, one, other)
        for n, instruction in enumerate(small.sample)
        for reads in [[m for m in instruction.reads() if instruction.operands[m].is_in_bank]]
        if instruction.steps(5)
        and len(reads) > 1
        and not (instruction.unit <= M.ENGINE_1 and instruction.operation == M.REDUCE)
        for one, other in [reads[:2]]
    ]
    for n, one, other in np.random.default_rng(0).permutation(pairs)[:8].tolist():
        operands = dict(small.sample[n].operands)
        operands[other] = operands[other]._replace(memory=operands[one].memory)
        found = hazards_of(changed(small, n, operands=operands), 5)
        assert any(h.kind == "port" and h.instructions == (n, n) for h in found)


def test_a_stream_that_ends_with_its_bank_is_reported(small):
    sample = list(small.sample)
    i = next(i for i, instruction in enumerate(sample) if instruction.is_reduce)
    stream = sample[i].operands[1]
    depth = M.banks[stream.number].depth
    (access,) = (access for access in accesses(sample[i]) if access.operand == 1)
    moved = depth - access.interval(small.offset_span)[1]
    sample[i] = replace(sample[i], operands=sample[i].operands | {1: stream.offset_by(moved)})
    texts = [hazard.text for hazard in hazards_of(replace(small, forward=sample, backward=[]), SMALL.sequence_length)]
    assert f"instruction {i} accesses vector {depth} of {stream.memory}, which has {depth}" in texts


@pytest.mark.parametrize("library", [pytest.param("loop", marks=pytest.mark.long), "fast"])
def test_a_bank_that_a_port_does_not_reach(trainer_libraries, small, library):
    """The compiler, the check and the machine refuse it."""
    n = next(n for n, i in enumerate(small.sample) if i.unit == M.VECTOR and 3 in i.operands)
    instruction = small.sample[n]
    assert list(instruction.unreached()) == []
    operand = instruction.operands[3]._replace(memory=Memory.bank(M.IN_BANK))
    wrong = changed(small, n, operands=instruction.operands | {3: operand})
    found = hazards_of(wrong, 5)
    assert any(h.kind == "reach" and h.instructions == (n,) and "VECTOR_R0 reaches banks" in h.text for h in found)
    processor = NativeProcessor(trainer_libraries[library])
    with pytest.raises(ProgramError, match="the machine refuses the program"):
        processor.load_program(wrong)
    processor.load_program(small)
    with pytest.raises(ProgramError, match="operand 3 writes bank 0, VECTOR_R0 reaches banks"):
        Builder().vector(M.COPY, "nowhere", [Level("w", 1)], r0=at(Memory.bank(0), 0))


def test_sums_without_their_idle_steps_are_always_caught(small):
    """Without idle steps a sum is added to again after fewer than SUM_DISTANCE steps."""
    length, tried = 3, 0
    for n, instruction in enumerate(small.sample):
        idle = [
            loop for loop in instruction.loops if value_of(loop.bound, length) > value_of(loop.active_bound, length) > 0
        ]
        if not (adds_up(instruction) and idle and instruction.accumulator_loop) or tried == 8:
            continue
        tight = replace(
            instruction,
            loops=tuple(loop._replace(bound=loop.active_bound) if loop in idle else loop for loop in instruction.loops),
        )
        names = [loop.name for loop in tight.loops]
        inside = [value_of(loop.bound, length) for loop in tight.loops[names.index(tight.accumulator_loop) + 1 :]]
        turns = [value_of(loop.bound, length) for loop in tight.loops[: names.index(tight.accumulator_loop) + 1]]
        if np.prod(inside) < M.SUM_DISTANCE and np.prod(turns) > 1:
            tried += 1
            found = hazards_of(changed(small, n, loops=tight.loops), length)
            assert any(h.kind == "sums" and h.instructions == (n,) for h in found)
    assert tried > 3


def test_a_program_that_waits_for_itself(small):
    """An instruction that waits for a later one of its own unit never begins, and the report says so."""
    n = next(n for n, i in enumerate(small.sample) if i.unit == M.VECTOR)
    after = list(small.sample[n].after_end)
    after[M.VECTOR] = 100
    wrong = changed(small, n, after_end=after)
    (found,) = hazards_of(wrong, 5)
    assert found.kind == "stuck" and "waits for itself" in found.text
