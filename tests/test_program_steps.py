"""The machine's loop, compiled, trains whole samples to the functional model's bits, in the modelled cycles.

What the kernel refuses: samples, parameters, optimizers and programs that would do harm.
"""

import os
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

from bttlab.card.image import IMAGES
from bttlab.card.processor import result_dtype, sample_records
from bttlab.compiler.errors import ProgramError
from bttlab.compiler.hazards import check_program
from bttlab.compiler.machine import M, machine_of, targeting
from bttlab.compiler.memory.layout import Layout
from bttlab.compiler.program import Options, Program, compile
from bttlab.compiler.timing import time_program
from bttlab.model import ModelConfig, Optimizer

from build_library import SOURCES, library
from processor_native import NativeProcessor, aligned
from training_processor import (
    COMMON,
    FLAGS,
    SMALL,
    check_gradients,
    equal_bits,
    fresh_processor,
    some_parameters,
    some_samples,
)

WHICH = [pytest.param("loop", marks=pytest.mark.long), "fast"]
OUTCOME = ["status", "intent", "loss", "intent_loss", "slot_loss", "slots"]  # of a result, without its cycles


@pytest.fixture(scope="module")
def paper() -> Program:
    return compile(ModelConfig(encoders=2))


@pytest.fixture(scope="module")
def small() -> Program:
    return compile(SMALL)


def start(processor: NativeProcessor, program: Program, seed: int = 0) -> None:
    processor.load_program(program)
    config = program.config
    processor.load(some_parameters(config, seed=seed) if isinstance(config, ModelConfig) else config.parameters())


def records_of(program, lengths, optimizer, rate=0.01, seed=0, smoothing=0.0, step=0):
    samples = some_samples(program.config, lengths, seed)
    return sample_records(program, samples, np.full(len(lengths), rate), optimizer, smoothing, step)


def same_outcome(found: np.ndarray, wanted: np.ndarray) -> bool:
    """Return True if results are equal to the bit."""
    return all(found[name].tobytes() == wanted[name].tobytes() for name in OUTCOME)


def check_same(loop, fast, program, lengths, optimizer, smoothing=0.0) -> None:
    """Train on the same samples in both, in two calls; compare all that there is, and the cycles."""
    for processor in (loop, fast):
        start(processor, program)
    for half, first in ((lengths[: (len(lengths) + 1) // 2], 0), (lengths[(len(lengths) + 1) // 2 :], len(lengths))):
        records = records_of(program, half, optimizer, seed=first, smoothing=smoothing, step=first)
        found, wanted = loop.train(records, optimizer), fast.train(records, optimizer)
        assert (found["status"] == M.DONE).all()
        assert same_outcome(found, wanted)
        modelled = [time_program(program.sample, length, n > 0).cycles for n, length in enumerate(half)]
        assert found["cycles"].tolist() == modelled
        assert found["flush_cycles"][-1] == time_program(program.flush, 1).cycles
    for found, wanted in zip(loop.store(), fast.store(), strict=True):
        assert equal_bits(found, wanted)


@pytest.mark.long
@pytest.mark.parametrize(("name", "lengths"), [("sgd", [13, 2, 32]), ("momentum", [16, 5, 17]), ("adamw", [24, 3, 13])])
def test_the_papers_model(loop, fast, paper, name, lengths):
    check_same(loop, fast, paper, lengths, Optimizer(name, batch_size=2 if name == "adamw" else 1), smoothing=0.1)


@pytest.mark.long
@pytest.mark.parametrize(("config", "lengths"), [(SMALL, [2, 17, 9]), (ModelConfig(encoders=2), [13, 3])])
def test_the_loop_of_the_schedule_for_300_mhz(fast, config, lengths):
    """It has a longer LATENCY, takes programs of its clock alone, and computes the functional model's bits."""
    unit = SOURCES / "processor" / "trainer.cpp"
    loop = NativeProcessor(library(unit, *COMMON, *FLAGS["loop"], *IMAGES[-1].flags, "-DBTTLAB_CLOCK_MHZ=300"))
    programs = {fast: compile(config), loop: compile(config, Options(clock_mhz=300))}
    program = programs[loop]
    assert program.clock_mhz == 300 and program.sha256 != programs[fast].sha256
    assert [len(section) for section in program.sections] == [len(section) for section in programs[fast].sections]
    with pytest.raises(ProgramError, match="the machine refuses the program"):
        fast.load_program(program)
    for processor, one in programs.items():
        start(processor, one)
    records = records_of(program, lengths, Optimizer("sgd"))
    found, wanted = (processor.train(records, Optimizer("sgd")) for processor in (loop, fast))
    assert (found["status"] == M.DONE).all() and same_outcome(found, wanted)
    with targeting(machine_of(300)):
        modelled = [time_program(program.sample, length, n > 0).cycles for n, length in enumerate(lengths)]
    assert found["cycles"].tolist() == modelled
    assert modelled > [time_program(programs[fast].sample, length, n > 0).cycles for n, length in enumerate(lengths)]
    for one, other in zip(loop.store(), fast.store(), strict=True):
        assert equal_bits(one, other)
    assert check_program(program, [2, max(lengths)]) == []


@pytest.mark.parametrize("optimizer", [Optimizer("adamw"), Optimizer("sgd", batch_size=2)], ids=lambda o: o.name)
def test_a_small_model(loop, fast, small, optimizer):
    check_same(loop, fast, small, [2, 17, 9], optimizer)


@pytest.mark.long
@pytest.mark.parametrize("name", ["sgd", "momentum", "adamw"])
def test_every_length_of_a_small_model(loop, fast, small, name):
    check_same(loop, fast, small, list(range(2, SMALL.sequence_length + 1)), Optimizer(name))


@pytest.mark.long
def test_a_program_without_moments(loop, fast, monkeypatch):
    monkeypatch.setattr(Layout, "has_moments", False)
    program = compile(replace(SMALL, intents=SMALL.intents + 1))  # of a model that no other test has in the cache
    assert not program.layout.has_moments
    check_same(loop, fast, program, [2, 17, 9], Optimizer("sgd"))


@st.composite
def drawn_models(draw) -> ModelConfig:
    """Small models of any shape; the card refuses some."""

    def modes(features: int, count: int) -> tuple[int, ...]:
        if count == 1:
            return (features,)
        first = draw(st.sampled_from([n for n in range(1, 17) if features % n == 0]))
        return (first, *modes(features // first, count - 1))

    hidden, count = draw(st.sampled_from([16, 32, 48, 64, 96, 128])), draw(st.sampled_from([2, 3, 3, 4]))
    rows = tuple(draw(st.integers(least, 6)) for least in (3, 1, 1))
    pairs = [(n, m) for n in range(1, 17) for m in range(1, 17) if hidden % (16 * n) == 0 and hidden // n % m == 0]
    first, last = draw(st.sampled_from(pairs))
    return ModelConfig(
        encoders=draw(st.integers(1, 3)),
        sequence_length=draw(st.integers(4, 40)),
        hidden_size=hidden,
        heads=draw(st.sampled_from([n for n in (1, 2, 4, 8) if hidden % (16 * n) == 0])),
        vocabulary_size=int(np.prod(rows)),
        intents=draw(st.integers(2, 30)),
        slots=draw(st.integers(2, 40)),
        linear_out_modes=modes(hidden, count),
        linear_in_modes=modes(hidden, count),
        linear_rank=draw(st.integers(1, 20)),
        embedding_row_modes=rows,
        embedding_column_modes=(first, hidden // first // last, last),
        embedding_rank=draw(st.integers(1, 20)),
        activation=draw(st.sampled_from(["gelu", "relu", "silu", "tanh"])),
    )


@pytest.mark.long
@settings(
    max_examples=int(os.environ.get("BTTLAB_MODEL_EXAMPLES", "5")),
    derandomize="BTTLAB_MODEL_EXAMPLES" not in os.environ,  # many others offline
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(
    config=drawn_models(),
    flow=st.sampled_from(["bidirectional", "right_to_left", "mixed", (1, 1), (1, 2), (2, 2), (3, 3)]),
    optimizer=st.builds(Optimizer, st.sampled_from(["sgd", "momentum", "adamw"]), batch_size=st.integers(1, 4)),
)
def test_drawn_models_are_refused_or_right(loop, fast, config, flow, optimizer):
    """`--hypothesis-show-statistics` counts both."""
    longest = config.sequence_length
    try:
        program = compile(config, Options(flow, sums=optimizer.batch_size > 1))
    except ProgramError as error:
        assert "\n" not in str(error)
        event("refused")
        return
    if not program.layout.has_moments:
        optimizer = Optimizer("sgd", batch_size=optimizer.batch_size)
    assert check_program(program, (longest,)) == []
    check_gradients(fast, config, (2, longest), tolerance=1e-3, flow=flow, least=1 / 10)
    check_same(loop, fast, program, [2, longest, longest // 2], optimizer)
    event("right")


def test_prediction_leaves_everything_alone(loop, fast, small):
    optimizer = Optimizer("adamw")
    for processor in (loop, fast):
        start(processor, small)
        processor.train(records_of(small, [7, 3], optimizer), optimizer)
    before = loop.store()
    records = records_of(small, [5, 18, 2], optimizer, seed=1)
    found, wanted = loop.predict(records), fast.predict(records)
    assert (found["status"] == M.DONE).all() and same_outcome(found, wanted)
    assert found["cycles"].tolist() == [time_program(small.forward, length, False).cycles for length in (5, 18, 2)]
    for processor in (loop, fast):
        for after, was in zip(processor.store(), before, strict=True):
            assert equal_bits(after, was)


BAD_RECORDS = {  # what goes wrong in a sample's record: field, place, value, status
    "tokens": ("tokens", (), SMALL.sequence_length + 1, M.BAD_LENGTH),
    "one token": ("tokens", (), 1, M.BAD_LENGTH),
    "intent": ("intent", (), SMALL.intents, M.BAD_INTENT),
    "slot": ("slots", (2,), SMALL.slots, M.BAD_SLOT),
    "token": ("token_offsets", (1, 0), 1 << 14, M.BAD_TOKEN),
    "rate below zero": ("scalars", (0,), -1.0, M.BAD_LEARNING_RATE),
    "rate too large": ("scalars", (0,), 2.0**31, M.UPDATE_NOT_FINITE),
    "weight of the loss": ("scalars", (4,), np.inf, M.GRADIENT_NOT_FINITE),
}


@pytest.mark.parametrize("which", WHICH)
@pytest.mark.parametrize("bad", BAD_RECORDS)
def test_a_sample_that_fails_changes_nothing(trainer_libraries, small, tmp_path, which, bad):
    field, place, value, status = BAD_RECORDS[bad]
    optimizer = Optimizer("momentum")
    records = records_of(small, [5, 9, 4, 6], optimizer)
    with (
        fresh_processor(trainer_libraries[which], tmp_path) as hurt,
        fresh_processor(trainer_libraries["fast"], tmp_path) as never,
    ):
        for processor in (hurt, never):
            start(processor, small)
        broken = records.copy()
        broken[field][(2, *place)] = value
        # The third fails: the first two are trained on, the fourth is not reached.
        assert hurt.train(broken, optimizer)["status"].tolist() == [M.DONE, M.DONE, status, M.NOT_REACHED]
        never.train(records[:2], optimizer)
        for found, wanted in zip(hurt.store(), never.store(), strict=True):
            assert equal_bits(found, wanted)
        hurt.train(records[2:], optimizer)
        never.train(records[2:], optimizer)
        for found, wanted in zip(hurt.store(), never.store(), strict=True):
            assert equal_bits(found, wanted)


@pytest.mark.parametrize("which", WHICH)
@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        ("slot_head.weight", np.nan, "LOSS_NOT_FINITE"),
        ("embedding.position.weight", np.inf, "LOSS_NOT_FINITE"),
        ("encoders.1.first.cores.4", 2.0**63, "STATE_NOT_FINITE"),
    ],
)
def test_parameters_that_are_not_finite(trainer_libraries, small, tmp_path, which, name, value, status):
    optimizer = Optimizer("adamw")
    records = records_of(small, [5, 9], optimizer)
    parameters = some_parameters(SMALL)
    hurt = {n: p.copy() for n, p in parameters.items()}
    hurt[name].flat[1] = value
    with fresh_processor(trainer_libraries[which], tmp_path) as processor:
        processor.load_program(small)
        processor.load(hurt)
        found = processor.train(records, optimizer)["status"].tolist()
        assert found[0] in (getattr(M, status), M.STATE_NOT_FINITE) and found[1] == M.NOT_REACHED
        after = processor.store()
        assert equal_bits(after[0], hurt) and not any(
            moment.any() for moments in after[1:] for moment in moments.values()
        )
        # Good ones again: as if nothing had been.
        processor.load(parameters)
        losses = processor.train(records, optimizer)
        state = processor.store()
    with fresh_processor(trainer_libraries["fast"], tmp_path) as never:
        start(never, small)
        assert same_outcome(never.train(records, optimizer), losses)
        for found, wanted in zip(state, never.store(), strict=True):
            assert equal_bits(found, wanted)


# ---- what the kernel itself refuses, whatever the host lets pass


@pytest.fixture(params=["loop", "fast"])
def fresh(request, trainer_libraries, tmp_path, small) -> Iterator[NativeProcessor]:
    """A kernel with the small program and ordinary parameters."""
    with fresh_processor(trainer_libraries[request.param], tmp_path) as processor:
        start(processor, small)
        yield processor


@pytest.mark.long
def test_constants_of_an_optimizer_out_of_range(fresh, small, monkeypatch):
    records = records_of(small, [5], Optimizer("adamw"))
    monkeypatch.setattr("processor_native.optimizer_arguments", lambda optimizer: optimizer)
    for optimizer in ((3, 0.0, 0.0, 0.0), (1, 1.0, 0.0, 0.0), (2, 0.9, -0.1, 1e-8), (2, 0.9, 0.9, -1.0)):
        assert fresh.train(records, optimizer)["status"] == M.BAD_OPTIMIZER
    endless = records.copy()
    endless["scalars"][0, 1] = 2.0**61  # AdamW's step
    assert fresh.train(endless, (2, 0.9, 0.9, 1.0))["status"] == M.UPDATE_NOT_FINITE
    assert fresh.train(records, (2, 0.9, 0.9, 1.0))["status"] == M.DONE


@pytest.mark.long
@pytest.mark.parametrize(("third", "limit"), [(1, 2.0**63), (2, 2.0**127)])
def test_moments_beyond_their_limits(fresh, small, third, limit):
    """The optimizers that keep a moment see it, the others do not."""
    states = [some_parameters(SMALL), *fresh.store()[1:]]
    states[third]["slot_pooler.bias"][3] = limit
    for name, moments in (("sgd", 0), ("momentum", 1), ("adamw", 2)):
        fresh.load(*states)
        status = fresh.train(records_of(small, [5], Optimizer(name), rate=0.0), Optimizer(name))["status"]
        assert status == (M.STATE_NOT_FINITE if moments >= third else M.DONE)


BAD_IMAGES = {  # what an image says that it must not: vector, place, value
    "magic": (0, 0, 1),
    "version": (0, 1, 99),
    "digest": (0, 2, 12345),
    "number of instructions": (0, 3, 5),
    "begin of a section": (0, 4, -1),
    "length of a section": (0, 5, 4000),
    "two sections with a gap": (0, 6, 2),
    "many tokens of a table": (1, 3, 1 << 17),
    "register below zero": (2, 2, -1),
    "register of 17 bits": (2, 3, 1 << 16),
    "register far from the length": (2, 0, 1 << 20),
    "steps without end": (None, 8, 0x7FFF7FFF),  # bounds of the first instruction's outer levels
    "long sequence": (1, 0, M.SEQUENCE + 1),
    "no sequence": (1, 0, 0),
    "unit": (None, 0, 7),  # of the first instruction
}


@pytest.mark.long
@pytest.mark.parametrize("bad", [*BAD_IMAGES, "checksum"])
def test_images_that_are_no_program(fresh, small, bad):
    image, result = aligned(small.image), aligned(np.zeros(1, result_dtype()))
    if bad == "checksum":
        image[4, 4] ^= 1
    else:
        vector, place, value = BAD_IMAGES[bad]
        vector = len(image) - 2 * sum(map(len, small.sections)) if vector is None else vector
        image[1, 7] += image[vector, place] - value
        image[vector, place] = value
    fresh._call(M.LOAD_PROGRAM, len(image), results=result, image=image)
    assert result["status"] == M.NO_PROGRAM
    optimizer = Optimizer("sgd")
    assert fresh.train(records_of(small, [5], optimizer), optimizer)["status"] == M.NO_PROGRAM


@pytest.mark.long
def test_a_program_that_waits_for_itself_is_stuck(loop, small):
    optimizer, forward = Optimizer("sgd"), list(small.forward)
    forward[1] = replace(forward[1], after_end=[100 * (unit == M.ENGINE_0) for unit in range(M.UNITS)])
    loop.load_program(replace(small, forward=forward))
    loop.load(some_parameters(SMALL))
    assert loop.train(records_of(small, [5], optimizer), optimizer)["status"] == M.PROGRAM_STUCK
    start(loop, small)
    assert loop.train(records_of(small, [5], optimizer), optimizer)["status"] == M.DONE
