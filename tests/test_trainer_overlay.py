"""The overlay of the training processor on the emulated card: one for all models, against the PyTorch reference."""

import json
from dataclasses import replace

import numpy as np
import pynq
import pytest

import tiny_baseline
from bttlab import cli
from bttlab.card import EmulatedU50, OverlayError, TrainerDriver, load_overlay, open_trainer
from bttlab.card.manifest import overlays_folder, read_manifest
from bttlab.card.trainer import MAX_SAMPLES
from bttlab.compiler.errors import ProgramError
from bttlab.compiler.image import checksum
from bttlab.compiler.machine import SOURCE, M
from bttlab.compiler.program import Options, compile
from bttlab.compiler.timing import time_program
from bttlab.data import Samples
from bttlab.model import ModelConfig, Optimizer, ReferenceTrainer, StateError, initial_parameters

from emulated_kernels import container
from training_processor import state_digest

SGD, MOMENTUM, ADAMW = Optimizer("sgd"), Optimizer("momentum"), Optimizer("adamw")
MODEL = ModelConfig()
SMALL_RANK = ModelConfig(linear_rank=8)
SNIPS = ModelConfig().with_vocabulary(11_428)  # words of its training split, their classes and the special tokens
OWN_RANKS = ModelConfig(ranks={"encoders.0.query": 6, "slot_pooler": 9})
LONG = pytest.mark.long
SMALL = ModelConfig(heads=4, sequence_length=40).with_hidden_size(256)


@pytest.fixture(scope="module")
def samples():
    return tiny_baseline.samples(400, MODEL)


@pytest.fixture(scope="module")
def driver():
    return load_overlay("trainer", EmulatedU50()).trainer_1


@pytest.fixture
def trainer(driver):
    driver.load_program(MODEL)
    driver.load_parameters(initial_parameters(MODEL, 0))
    return driver


# --- the overlay and its driver


def test_plain_pynq_loads_the_overlay_and_binds_the_driver():
    overlay = pynq.Overlay(str(overlays_folder() / "trainer.xclbin"))
    assert isinstance(overlay.trainer_1, TrainerDriver) and isinstance(overlay.device, EmulatedU50)
    assert "TrainerDriver" in overlay.__doc__


def test_what_the_driver_knows_of_the_source_is_so():
    assert [getattr(M, name) for name in M.enums["Status"]] == list(range(len(M.enums["Status"])))
    assert M.enums["Status"][:2] == ("NOT_REACHED", "DONE") and M.enums["Status"][-1] == "PROGRAM_STUCK"
    source = (SOURCE / "samples.h").read_text()
    assert f"MAX_SAMPLES = 1 << {MAX_SAMPLES.bit_length() - 1};" in source and MAX_SAMPLES == 1 << 16


def test_a_fresh_card_asks_for_a_program_and_then_for_parameters(samples):
    fresh = load_overlay("trainer", EmulatedU50()).trainer_1
    for call in (lambda: fresh.config, fresh.store_parameters, fresh.profile):
        with pytest.raises(StateError, match="load_program"):
            call()
    fresh.load_program(SMALL_RANK)
    with pytest.raises(StateError, match="load_parameters"):
        fresh.train(samples[:1], SGD, 1e-3)


def test_a_trainer_says_that_another_one_has_replaced_its_parameters(samples):
    """Not even the same model's program on the chip makes them its own."""
    card = EmulatedU50()
    expected = [_trained(open_trainer(MODEL, EmulatedU50()), seed, samples) for seed in (0, 1)]
    first, second = (open_trainer(MODEL, card) for _ in range(2))
    for work in (
        lambda: first.load_parameters(initial_parameters(MODEL, 0)),
        lambda: first.train(samples[:4], SGD, 1e-2),
        lambda: first.predict(samples[:4]),
        first.store_parameters,
        lambda: first.start(samples[:4], SGD, 1e-2).wait(),
    ):
        _trained(first, 0, samples)
        assert first.has_program_for(MODEL)
        assert (_trained(second, 1, samples) == expected[1]).all()
        with pytest.raises(StateError, match=f"another trainer has replaced .* on {card.name}: call load_program and"):
            work()
        assert not first.has_program_for(MODEL)
    assert (_trained(first, 0, samples) == expected[0]).all()
    load_overlay("trainer", card)
    with pytest.raises(StateError, match="no program any more, since its overlay was loaded again: call load_program"):
        first.train(samples[:4], SGD, 1e-2)
    assert (_trained(first, 0, samples) == expected[0]).all()


def test_a_state_of_no_training_is_refused_as_in_pytorch(samples):
    """Moments at step 0 were dropped here, and kept there. Those of 0 are as a fault at the first sample leaves."""
    trainer = open_trainer(SMALL_RANK, EmulatedU50())
    trainer.load_parameters(initial_parameters(SMALL_RANK, 0))
    trainer.train(samples[:2], MOMENTUM, 1e-3)
    parameters, state = trainer.store_parameters(), trainer.store_optimizer_state()
    before = state_digest(trainer)
    for changed, message in (({"step": 0}, "step 0 and first_moment"), ({"step": 2.7}, "has step 2.7")):
        for each in (trainer, ReferenceTrainer(SMALL_RANK)):
            with pytest.raises(StateError, match=message):
                each.load_parameters(parameters, state | changed)
    assert state_digest(trainer) == before
    trainer.load_parameters(parameters, {name: 0 * array for name, array in state.items()})
    assert trainer.step == 0 and trainer.train(samples[:1], MOMENTUM, 1e-3).shape == (1,)


def _trained(trainer, seed, samples):
    trainer.load_program(MODEL)
    trainer.load_parameters(initial_parameters(MODEL, seed))
    return trainer.train(samples[:4], SGD, 1e-2)


def test_an_overlay_of_other_widths_is_refused(monkeypatch):
    real = TrainerDriver._run

    def other_widths(self, command, *arguments):
        real(self, command, *arguments)
        if command == M.DESCRIBE:
            self._results[2] += 1
            self._results.sync_to_device()

    monkeypatch.setattr(TrainerDriver, "_run", other_widths)
    with pytest.raises(OverlayError, match=r"version 2 with widths .* rebuild the overlay with: make overlays"):
        _ = load_overlay("trainer", EmulatedU50()).trainer_1


# --- training


@pytest.mark.parametrize(
    "optimizer", [SGD, MOMENTUM, ADAMW, replace(SGD, batch_size=7), replace(ADAMW, batch_size=6)], ids=str
)
def test_however_training_is_cut_into_calls_the_bits_stay(trainer, samples, optimizer):
    losses = trainer.train(samples[:40], optimizer, 1e-3)
    whole = state_digest(trainer)
    trainer.load_parameters(initial_parameters(MODEL, 0))
    again = [trainer.train(samples[first:last], optimizer, 1e-3) for first, last in ((0, 1), (1, 15), (15, 15))]
    state = trainer.store_parameters(), trainer.store_optimizer_state()
    trainer.load_program(SMALL_RANK)  # another model in between
    trainer.load_parameters(initial_parameters(SMALL_RANK, 1))
    trainer.train(samples[:5], ADAMW, 1e-3)
    trainer.load_program(MODEL)
    trainer.load_parameters(*state)
    again.append(trainer.train(samples[15:40], optimizer, 1e-3))
    assert np.array_equal(np.concatenate(again), losses) and state_digest(trainer) == whole
    trainer.load_parameters(initial_parameters(MODEL, 0))
    assert np.array_equal(trainer.start(samples[:40], optimizer, 1e-3).wait(), losses)
    assert state_digest(trainer) == whole


@pytest.mark.parametrize("optimizer", [SGD, MOMENTUM, ADAMW], ids=lambda o: o.name)
def test_an_update_of_several_samples_is_the_references(trainer, samples, optimizer):
    optimizer = replace(optimizer, batch_size=4, epsilon=1e-3)
    reference = ReferenceTrainer(MODEL, seed=0)
    losses = trainer.train(samples[:14], optimizer, 1e-3)
    np.testing.assert_allclose(losses, reference.train(samples[:14], optimizer, 1e-3), rtol=1e-4)
    states = [t.store_parameters() | t.store_optimizer_state() for t in (trainer, reference)]
    assert list(states[0]) == list(states[1])
    for name, array in states[0].items():
        np.testing.assert_allclose(array, states[1][name], rtol=1e-3, atol=1e-5 * max(1.0, np.abs(array).max()))


# --- programs


@pytest.mark.parametrize(
    "config",
    [
        SMALL_RANK,
        pytest.param(ModelConfig(encoders=6), marks=LONG),
        SNIPS,
    ],
    ids=("rank 8", "6 encoders", "vocabulary of SNIPS"),
)
def test_other_models_run_on_the_same_overlay(trainer, samples, config):
    image = trainer.overlay_sha256
    spread = samples.tokens * (config.vocabulary_size // MODEL.vocabulary_size)  # over all of the table
    samples = Samples(spread, samples.lengths, samples.intents, samples.slots)
    trainer.load_program(config)
    reference = ReferenceTrainer(config, seed=1)
    trainer.load_parameters(reference.store_parameters())
    got, want = (one.train(samples[:30], SGD, 4e-3) for one in (trainer, reference))
    assert trainer.config == config and trainer.overlay_sha256 == image
    assert np.abs(got / want - 1).max() <= 1e-3


@pytest.mark.parametrize(
    ("place", "value", "sums_up", "message"),
    [
        ((0, 0), 7, True, "begins with 0x7, not with"),
        ((0, 1), 9, True, "of version 9, the machine on the card of version 2"),
        ((0, 2), 5, True, "other widths"),
        ((60, 3), 99, False, "damaged"),
        ((0, 5), 4000, True, "machine refuses the program"),
    ],
    ids=("no program", "version", "width", "damaged", "sections"),
)
def test_a_bad_program_leaves_the_card_as_before(trainer, samples, monkeypatch, place, value, sums_up, message):
    trainer.train(samples[:3], ADAMW, 1e-3)
    before, program = state_digest(trainer), trainer.program
    image = program.image.copy()
    image[place] = value
    if sums_up:
        image[1, 7] = 0
        image[1, 7] = checksum(image)
    wrong = replace(program)
    monkeypatch.setitem(vars(wrong), "image", image)
    with pytest.raises(ProgramError, match=message):
        trainer.load_program(wrong)
    for call in (trainer.load_program, lambda config: open_trainer(config, trainer.device)):
        with pytest.raises(ProgramError, match="rank 99"):  # a model that does not fit
            call(ModelConfig(encoders=1, linear_rank=99))
    assert trainer.program is program and state_digest(trainer) == before
    trainer.train(samples[3:6], ADAMW, 1e-3)
    after = state_digest(trainer)
    trainer.load_parameters(initial_parameters(MODEL, 0))
    trainer.train(samples[:6], ADAMW, 1e-3)
    assert state_digest(trainer) == after


# --- the profile


def test_the_profile_is_what_the_programs_steps_take(trainer, samples):
    trainer.profile()
    trainer.train(samples[:3], SGD, 1e-3)
    trainer.predict(samples[:3])
    program, lengths = trainer.program, samples[:3].lengths.tolist()
    table = trainer.profile()
    runs = [time_program(program.sample, tokens, number > 0).cycles for number, tokens in enumerate(lengths)]
    assert sum(table.values()) == sum(runs) + time_program(program.flush, 1).cycles
    assert {stage for stage, _ in table} == {"FP", "BP", "PU"} and ("BP", "embedding.word") in table
    assert trainer.profile() == {}


# --- the command


@pytest.fixture
def command(short_airline) -> list[str]:
    """The beginning of a run that is soon done."""
    return ["train", "--data", str(short_airline), "--device", "emulated"]


def configuration(run) -> dict:
    return json.loads((run / "run.json").read_text())["configuration"]


@pytest.mark.parametrize(
    ("options", "config", "flow"),
    [
        (["--rank", "8"], SMALL_RANK, "bidirectional"),
        pytest.param(["--rank", "12,encoders.0.query=6,slot_pooler=9"], OWN_RANKS, "bidirectional", marks=LONG),
        pytest.param(
            ["--flow", "auto", "--hidden-size", "256", "--heads", "4", "--sequence-length", "40"],
            SMALL,
            "auto",
            marks=LONG,
        ),
    ],
    ids=("rank", "ranks", "sizes"),
)
def test_train_records_the_overlay_and_the_program(command, tmp_path, capsys, options, config, flow):
    run = tmp_path / "run"
    assert cli.main([*command, *options, "--samples", "20", "--out", str(run)]) == 0
    found = configuration(run)
    entry = next(entry for entry in read_manifest(overlays_folder()) if entry.name == "trainer")
    assert found["overlay"] == "trainer" and found["flow"] == flow
    assert ModelConfig(**{key: found[key] for key in config.to_dict()}) == config
    assert found["overlay.sha256"] == entry.sha256
    assert found["program.sha256"] == compile(config, Options(flow)).sha256
    assert cli.main(["eval", "--run", str(run)]) == 0
    capsys.readouterr()
    assert cli.main(["train", "--resume", str(run), "--epochs", "2"]) == 0
    assert "the run so far was on" not in capsys.readouterr().err
    assert configuration(run) == found | {"epochs": 2, "device": "auto"}  # the host chooses the card again


@pytest.mark.parametrize("what", ["overlay", "program", "device"])
def test_a_run_that_goes_on_with_another_overlay_program_or_device_says_so(command, tmp_path, capsys, what):
    run = tmp_path / "run"
    assert cli.main([*command, "--samples", "10", "--out", str(run)]) == 0
    record = json.loads((run / "run.json").read_text())
    record["configuration"][f"{what}.sha256"] = "0" * 64
    record.pop("sha256", None)  # a change by hand
    (run / "run.json").write_text(json.dumps(record))
    capsys.readouterr()
    device = ["--device", "reference"] if what == "device" else []
    assert cli.main(["train", "--resume", str(run), "--epochs", "2", *device]) == 0
    before = "the emulated U50, overlay trainer" if device else f"another {what} (SHA-256 000000000000…)"
    note = f"the run so far was on {before}: an unbroken run may differ in its last bits"
    assert note in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rank", "12,encoders.5.query=4"], "'encoders.5.query', which is no layer"),
        (["--rank", "12,query"], "give a rank, and after commas layers"),
        (["--hidden-size", "8192", "--heads", "64"], "the first and last mode go up to 16"),
        pytest.param(
            ["--encoders", "6", "--rank", "13", "--optimizer", "adamw"],
            "choose sgd, or fewer encoders",
            marks=LONG,
        ),
        (["--overlay", "missing"], "no overlay 'missing'"),
        (["--overlay", "other.xclbin", "--trust"], "not the training processor"),
        (["--device", "reference", "--overlay", "trainer"], "leave it out with --device reference"),
    ],
)
def test_what_cannot_be_trained_is_one_line_and_no_folder(tmp_path, monkeypatch, capsys, options, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.xclbin").write_bytes(container())
    command = ["train", "--samples", "2", "--device", "emulated", "--out", str(tmp_path / "run"), *options]
    assert cli.main(command) == 2 and not (tmp_path / "run").exists()
    (line,) = [line for line in capsys.readouterr().err.splitlines() if message in line]
    assert line.startswith("bttlab")
