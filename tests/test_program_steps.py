"""The machine's loop, compiled, trains whole samples to the functional model's bits, in the modelled cycles."""

from dataclasses import replace

import numpy as np
import pytest

from bttlab.card.processor import NativeProcessor, sample_records
from bttlab.compiler.lowering import Lowering
from bttlab.compiler.machine import machine
from bttlab.compiler.program import Program, compile_program
from bttlab.compiler.timing import time_program
from bttlab.model import ModelConfig, Optimizer

from training_processor import SMALL, equal_bits, fresh_processor, some_parameters, some_samples

M = machine()
WHICH = [pytest.param("loop", marks=pytest.mark.long), "fast"]
OUTCOME = ["status", "intent", "loss", "intent_loss", "slot_loss", "slots"]  # of a result, without its cycles


@pytest.fixture(scope="module")
def loop(trainer_libraries) -> NativeProcessor:
    return NativeProcessor(trainer_libraries["loop"])


@pytest.fixture(scope="module")
def fast(trainer_libraries) -> NativeProcessor:
    return NativeProcessor(trainer_libraries["fast"])


@pytest.fixture(scope="module")
def paper() -> Program:
    return compile_program(ModelConfig(encoders=2))


@pytest.fixture(scope="module")
def small() -> Program:
    return compile_program(SMALL)


def start(processor: NativeProcessor, program: Program, seed: int = 0) -> None:
    processor.load_program(program)
    processor.load(some_parameters(program.model.config, seed=seed))


def records_of(program, lengths, optimizer, rate=0.01, seed=0, smoothing=0.0, step=0):
    samples = some_samples(program.model.config, lengths, seed)
    return sample_records(program, samples, np.full(len(lengths), rate), optimizer, smoothing, step)


def same_outcome(found: np.ndarray, wanted: np.ndarray) -> bool:
    """Return True if results are equal to the bit."""
    return all(found[name].tobytes() == wanted[name].tobytes() for name in OUTCOME)


def check_same(loop, fast, program, lengths, optimizer, smoothing=0.0) -> None:
    """Train on the same samples in both, in two calls; compare all that there is, and the cycles."""
    for processor in (loop, fast):
        start(processor, program)
    for half, first in ((lengths[: len(lengths) // 2 + 1], 0), (lengths[len(lengths) // 2 + 1 :], len(lengths))):
        records = records_of(program, half, optimizer, seed=first, smoothing=smoothing, step=first)
        found, wanted = loop.train(records, optimizer), fast.train(records, optimizer)
        assert (found["status"] == M.DONE).all()
        assert same_outcome(found, wanted)
        modelled = [time_program(program.sample, length, n > 0).cycles for n, length in enumerate(half)]
        assert found["cycles"].tolist() == modelled
    for found, wanted in zip(loop.store(), fast.store(), strict=True):
        assert equal_bits(found, wanted)


@pytest.mark.long
@pytest.mark.parametrize(("name", "lengths"), [("sgd", [13, 2, 32]), ("momentum", [16, 5, 17]), ("adamw", [24, 3, 13])])
def test_the_papers_model(loop, fast, paper, name, lengths):
    check_same(loop, fast, paper, lengths, Optimizer(name, batch_size=2 if name == "adamw" else 1), smoothing=0.1)


@pytest.mark.parametrize("optimizer", [Optimizer("adamw"), Optimizer("sgd", batch_size=2)], ids=lambda o: o.name)
def test_a_small_model(loop, fast, small, optimizer):
    check_same(loop, fast, small, [2, 17, 9], optimizer)


@pytest.mark.long
@pytest.mark.parametrize("name", ["sgd", "momentum", "adamw"])
def test_every_length_of_a_small_model(loop, fast, small, name):
    check_same(loop, fast, small, list(range(2, SMALL.sequence_length + 1)), Optimizer(name))


@pytest.mark.long
@pytest.mark.parametrize(
    "config",
    [
        replace(SMALL, linear_rank=16, embedding_rank=17, heads=4),
        replace(
            SMALL,
            hidden_size=128,
            linear_out_modes=(4, 4, 8),
            linear_in_modes=(8, 4, 4),
            embedding_column_modes=(4, 4, 8),
            linear_rank=5,
        ),
        replace(SMALL, intents=130, slots=300, encoders=1),
    ],
    ids=["ranks of a vector and more", "other modes", "more labels"],
)
def test_other_models(loop, fast, config):
    check_same(loop, fast, compile_program(config), [2, 17, 9], Optimizer("adamw"))


@pytest.mark.long
def test_a_program_without_moments(loop, fast, monkeypatch):
    monkeypatch.setattr(Lowering, "has_moments", False)
    program = compile_program(SMALL)
    assert not program.model.has_moments
    check_same(loop, fast, program, [2, 17, 9], Optimizer("sgd"))


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
        assert found[0] in (M.names[status], M.STATE_NOT_FINITE) and found[1] == M.NOT_REACHED
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
