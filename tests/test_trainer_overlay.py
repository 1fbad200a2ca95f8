"""The overlay of the training processor on the emulated card: one for all models, against the PyTorch reference."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pynq
import pytest

from bttlab import cli
from bttlab.card import Trainer, compiled, open_trainer
from bttlab.card.machine import machine
from bttlab.card.profile import cycles_by_layer
from bttlab.card.program.errors import ProgramError
from bttlab.card.program.program import checksum
from bttlab.card.program.timing import time_program
from bttlab.card.trainer import STATUSES
from bttlab.data import Samples, Vocabulary, encode, epoch_order, load_corpus
from bttlab.errors import BttlabError
from bttlab.model import ModelConfig, NumericalFault, Optimizer, ReferenceTrainer, StateError, initial_parameters
from bttlab.u50 import EmulatedU50, OverlayError, load_overlay, records
from bttlab.u50.build import SNIPS_TOKENS
from bttlab.u50.manifest import overlays_folder, read_manifest
from bttlab.u50.training import TrainingDriver

M = machine()
SGD, MOMENTUM, ADAMW = Optimizer("sgd"), Optimizer("momentum"), Optimizer("adamw")
MODEL = ModelConfig()
SMALL_RANK = ModelConfig(linear_rank=8)
SNIPS = ModelConfig().with_vocabulary(SNIPS_TOKENS)


@pytest.fixture(scope="module")
def samples():
    corpus = load_corpus("airline")
    vocabulary = Vocabulary.from_sentences(corpus.train.words, MODEL.vocabulary_size)
    train = encode(corpus.train, vocabulary, corpus, MODEL)
    return train[epoch_order(len(train), 0, 0)[:400]]


@pytest.fixture(scope="module")
def driver():
    return load_overlay("trainer", EmulatedU50()).trainer_1


@pytest.fixture
def trainer(driver):
    driver.load_program(MODEL)
    driver.load_parameters(initial_parameters(MODEL, 0))
    return driver


@pytest.fixture
def reference():
    return ReferenceTrainer(MODEL, seed=0)


def fingerprint(trainer) -> str:
    state = trainer.store_parameters() | trainer.store_optimizer_state()
    return hashlib.sha256(b"".join(state[name].tobytes() for name in sorted(state))).hexdigest()


def mixed_shapes() -> dict[str, tuple[int, ...]]:
    """The parameters of a model with the first encoder's query at rank 6 and its first feed-forward layer at rank 9."""
    shapes = MODEL.parameter_shapes()
    for layer, rank in (("encoders.0.query", 6), ("encoders.0.first", 9)):
        own = replace(MODEL, linear_rank=rank).parameter_shapes()
        shapes |= {name: shape for name, shape in own.items() if name.startswith(f"{layer}.cores.")}
    return shapes


class Tampered:
    """A program whose image has an integer that it should not have."""

    def __init__(self, program, place: tuple[int, int], value: int, sums_up: bool = True):
        self.model, self._program = program.model, program
        self._place, self._value, self._sums_up = place, value, sums_up

    def image(self) -> np.ndarray:
        image = self._program.image()
        image[self._place] = self._value
        if self._sums_up:
            image[1, 7] = 0
            image[1, 7] = checksum(image)
        return image


# --- the overlay and its driver


def test_plain_pynq_loads_the_overlay_and_binds_the_driver():
    overlay = pynq.Overlay(str(overlays_folder() / "trainer.xclbin"))
    assert isinstance(overlay.trainer_1, Trainer) and isinstance(overlay.device, EmulatedU50)
    assert "Trainer" in overlay.__doc__


def test_the_manifest_says_how_wide_the_machine_is():
    entry = next(entry for entry in read_manifest(overlays_folder()) if entry.name == "trainer")
    assert entry.kind == "emulation" and entry.kernels == ("trainer",) and entry.images == ("avx512", "avx2")
    assert entry.model is None
    assert entry.machine == json.loads(json.dumps(M.to_dict()))
    assert entry.machine["digest"] == M.digest and entry.machine["widths"]["LANES"] == M.LANES


def test_commands_and_statuses_are_those_of_the_isa():
    for name in ("DESCRIBE", "LOAD", "STORE", "TRAIN", "PREDICT"):
        assert M.names[name] == getattr(records, name)
    assert [M.names[name] for name in STATUSES] == list(range(len(STATUSES)))


def test_a_fresh_card_asks_for_a_program_and_then_for_parameters(samples):
    fresh = load_overlay("trainer", EmulatedU50()).trainer_1
    for call in (lambda: fresh.config, fresh.store_parameters, fresh.profile):
        with pytest.raises(StateError, match="load_program"):
            call()
    fresh.load_program(SMALL_RANK)
    with pytest.raises(StateError, match="load_parameters"):
        fresh.train(samples[:1], SGD, 1e-3)


def test_an_overlay_of_other_widths_is_refused(monkeypatch):
    real = TrainingDriver._run

    def other_widths(self, command, *arguments):
        real(self, command, *arguments)
        if command == records.DESCRIBE:
            self._results[2] += 1
            self._results.sync_to_device()

    monkeypatch.setattr(TrainingDriver, "_run", other_widths)
    with pytest.raises(OverlayError, match=r"version 1 with widths .* rebuild the overlay with: make overlays"):
        _ = load_overlay("trainer", EmulatedU50()).trainer_1


# --- training


def test_parameters_and_moments_come_back_as_they_went_in(trainer, samples):
    parameters = initial_parameters(MODEL, 3)
    trainer.load_parameters(parameters)
    stored = trainer.store_parameters()
    assert stored.keys() == parameters.keys()
    assert all(np.array_equal(stored[name], parameters[name]) for name in parameters)
    trainer.train(samples[:10], ADAMW, 1e-3)
    before = fingerprint(trainer)
    state = trainer.store_optimizer_state()
    assert state["step"] == 10 and len(state) == 1 + 2 * len(parameters)
    trainer.load_parameters(trainer.store_parameters(), state)
    assert fingerprint(trainer) == before


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_one_step_gives_the_parameters_of_the_reference(trainer, reference, samples, label_smoothing):
    for one in (trainer, reference):
        one.train(samples[:1], SGD, 4e-3, label_smoothing)
    got, want = trainer.store_parameters(), reference.store_parameters()
    for name in want:
        if not name.endswith("key.bias"):  # its gradient is zero, and what either finds is rounding
            assert np.linalg.norm(got[name] - want[name]) <= 1e-5 * np.linalg.norm(want[name]), name


@pytest.mark.parametrize(
    ("optimizer", "rate"), [(SGD, 4e-3), (MOMENTUM, 1e-3), (ADAMW, 3e-4)], ids=lambda o: getattr(o, "name", "")
)
def test_the_first_200_losses_are_those_of_the_reference(trainer, reference, samples, optimizer, rate):
    got, want = (one.train(samples[:200], optimizer, rate, 0.05) for one in (trainer, reference))
    assert np.abs(got / want - 1).max() <= 1e-3
    assert want[-50:].mean() < want[:50].mean(), "it learns"


@pytest.mark.parametrize("optimizer", [SGD, MOMENTUM, ADAMW], ids=lambda o: o.name)
def test_a_state_goes_both_ways_between_card_and_reference(trainer, reference, samples, optimizer):
    trainer.train(samples[:10], optimizer, 1e-3)
    reference.load_parameters(trainer.store_parameters(), trainer.store_optimizer_state())
    got, want = (one.train(samples[10:30], optimizer, 1e-3) for one in (trainer, reference))
    np.testing.assert_allclose(got, want, rtol=1e-4)
    trainer.load_parameters(reference.store_parameters(), reference.store_optimizer_state())
    got, want = (one.train(samples[30:50], optimizer, 1e-3) for one in (trainer, reference))
    np.testing.assert_allclose(got, want, rtol=1e-4)


@pytest.mark.parametrize("optimizer", [SGD, MOMENTUM, ADAMW], ids=lambda o: o.name)
def test_however_training_is_cut_into_calls_the_bits_stay(trainer, samples, optimizer):
    losses = trainer.train(samples[:40], optimizer, 1e-3)
    whole = fingerprint(trainer)
    trainer.load_parameters(initial_parameters(MODEL, 0))
    again = [trainer.train(samples[first:last], optimizer, 1e-3) for first, last in ((0, 1), (1, 15), (15, 15))]
    state = trainer.store_parameters(), trainer.store_optimizer_state()
    trainer.load_program(SMALL_RANK)  # another model in between
    trainer.load_parameters(initial_parameters(SMALL_RANK, 1))
    trainer.train(samples[:5], ADAMW, 1e-3)
    trainer.load_program(MODEL)
    trainer.load_parameters(*state)
    again.append(trainer.train(samples[15:40], optimizer, 1e-3))
    assert np.array_equal(np.concatenate(again), losses) and fingerprint(trainer) == whole
    trainer.load_parameters(initial_parameters(MODEL, 0))
    assert np.array_equal(trainer.start(samples[:40], optimizer, 1e-3).wait(), losses)
    assert fingerprint(trainer) == whole


def test_every_image_gives_the_same_bits(samples, monkeypatch):
    prints = set()
    for image in ("avx2", "best"):
        monkeypatch.delenv("BTTLAB_IMAGE", raising=False)
        if image == "avx2":
            monkeypatch.setenv("BTTLAB_IMAGE", "avx2")
        trainer = open_trainer(MODEL, EmulatedU50())
        trainer.load_parameters(initial_parameters(MODEL, 0))
        trainer.train(samples[:30], ADAMW, 1e-3)
        prints.add(fingerprint(trainer))
    assert len(prints) == 1


def test_predictions_are_those_of_the_reference_and_change_nothing(trainer, reference, samples):
    before = fingerprint(trainer)
    got, want = trainer.predict(samples[:50]), reference.predict(samples[:50])
    np.testing.assert_allclose(got.losses, want.losses, rtol=1e-5)
    assert (got.intents == want.intents).mean() > 0.95 and (got.slots == want.slots).mean() > 0.95
    assert got.slots.shape == want.slots.shape and fingerprint(trainer) == before


def test_training_goes_on_beside_the_caller_and_stops(trainer, samples):
    run = trainer.start(samples, MOMENTUM, 1e-4)
    for call in (trainer.train, trainer.start):
        with pytest.raises(OverlayError, match="training already"):
            call(samples[:1], MOMENTUM, 1e-4)
    with pytest.raises(OverlayError, match="training already"):
        trainer.load_program(SMALL_RANK)
    while not run.progress:
        assert not run.done
    run.stop()
    losses = run.wait()
    assert run.done and 0 < len(losses) <= len(samples)
    trainer.load_parameters(initial_parameters(MODEL, 0))
    assert np.array_equal(trainer.train(samples[: len(losses)], MOMENTUM, 1e-4), losses)


# --- faults


def test_a_loss_that_is_not_finite_stops_before_its_update(trainer, samples):
    rates = np.full(20, 1e-3)
    rates[7] = 1e9
    with pytest.raises(NumericalFault, match=r"sample 8 .* go on with a lower learning rate") as caught:
        trainer.train(samples[:20], SGD, rates)
    assert caught.value.sample == 8 and len(caught.value.losses) == 8 and np.isfinite(caught.value.losses).all()
    stopped = fingerprint(trainer)
    assert trainer.store_optimizer_state()["step"] == 8
    trainer.load_parameters(initial_parameters(MODEL, 0))
    trainer.train(samples[:8], SGD, rates[:8])
    assert fingerprint(trainer) == stopped
    trainer.load_parameters(initial_parameters(MODEL, 0))
    run = trainer.start(samples[:20], SGD, rates)
    with pytest.raises(NumericalFault) as caught:
        run.wait()
    assert caught.value.sample == 8 and len(run.losses) == 8


def test_training_goes_on_after_a_fault_as_if_there_had_been_none(trainer, samples):
    rates = np.full(3, 1e-3)
    rates[2] = 1e10  # beyond 2^30: the update would not be finite
    with pytest.raises(NumericalFault, match="update by sample 2"):
        trainer.train(samples[:3], ADAMW, rates)
    trainer.train(samples[2:6], ADAMW, 1e-3)
    after = fingerprint(trainer)
    trainer.load_parameters(initial_parameters(MODEL, 0))
    trainer.train(samples[:6], ADAMW, 1e-3)
    assert fingerprint(trainer) == after


@pytest.mark.parametrize(
    ("field", "place", "value", "message"),
    [
        ("tokens", (1, 1), 1000, "token"),
        ("slots", (1, 1), 122, "slot"),
        ("intents", (1,), 22, "intent"),
        ("lengths", (1,), 33, "length"),
    ],
)
def test_an_id_out_of_range_is_refused_before_it_reaches_the_card(trainer, samples, field, place, value, message):
    arrays = {name: getattr(samples[:3], name).copy() for name in ("tokens", "lengths", "intents", "slots")}
    arrays[field][place] = value
    before = fingerprint(trainer)
    with pytest.raises(BttlabError, match=rf"sample 1.*{message}.*{value}"):
        trainer.train(Samples(**arrays), SGD, 1e-3)
    assert fingerprint(trainer) == before


def test_a_forgotten_sync_is_said(trainer, samples, monkeypatch):
    trainer.train(samples[:1], SGD, 1e-3)
    before = fingerprint(trainer)
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "_records", trainer._banks["records"].allocate((1 << 16,), np.int32))
        patch.setattr(type(trainer._records), "sync_to_device", lambda buffer: None)
        with pytest.raises(OverlayError, match=r"BAD_LENGTH in sample 0.*sync_to_device"):
            trainer.train(samples[:3], SGD, 0.0)
    assert fingerprint(trainer) == before


def test_states_of_another_model_or_optimizer_are_refused(trainer, samples):
    before = fingerprint(trainer)
    with pytest.raises(StateError, match=r"another model.*loaded program's model of 2 encoders; load the program"):
        trainer.load_parameters(initial_parameters(SMALL_RANK, 0))
    assert fingerprint(trainer) == before
    trainer.train(samples[:2], ADAMW, 1e-3)
    with pytest.raises(StateError, match=r"first_moment.*momentum needs first_moment"):
        trainer.train(samples[:2], MOMENTUM, 1e-3)


# --- programs


@pytest.mark.parametrize(
    "config",
    [SMALL_RANK, ModelConfig(encoders=4), ModelConfig(encoders=6), SNIPS],
    ids=("rank 8", "4 encoders", "6 encoders", "vocabulary of SNIPS"),
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


def test_layers_have_ranks_of_their_own(trainer, samples):
    """Against the uniform model with the missing ranks filled up with zeros, which stay zeros."""
    shapes, generator = mixed_shapes(), np.random.default_rng(0)
    parameters = {name: 0.1 * generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    whole = {name: np.zeros(shape, np.float32) for name, shape in MODEL.parameter_shapes().items()}
    for name, tensor in parameters.items():
        whole[name][tuple(map(slice, tensor.shape))] = tensor
    trainer.load_program(MODEL, shapes)
    trainer.load_parameters(parameters)
    stored = trainer.store_parameters()
    assert all(np.array_equal(stored[name], parameters[name]) for name in parameters)
    reference = ReferenceTrainer(MODEL)
    reference.load_parameters(whole)
    np.testing.assert_allclose(trainer.predict(samples[:20]).losses, reference.predict(samples[:20]).losses, rtol=1e-4)
    got, want = (one.train(samples[:20], SGD, 1e-3) for one in (trainer, reference))  # zeros have no gradient
    np.testing.assert_allclose(got, want, rtol=1e-3)


@pytest.mark.parametrize(
    ("place", "value", "sums_up", "message"),
    [
        ((0, 0), 7, True, "begins with 0x7, not with"),
        ((0, 1), 9, True, "of version 9, the machine on the card of version 1"),
        ((0, 2), 5, True, "other widths"),
        ((60, 3), 99, False, "damaged"),
        ((0, 5), 4000, True, "machine refuses the program"),
    ],
    ids=("no program", "version", "width", "damaged", "sections"),
)
def test_a_bad_program_leaves_the_card_as_before(trainer, samples, place, value, sums_up, message):
    trainer.train(samples[:3], ADAMW, 1e-3)
    before, program = fingerprint(trainer), trainer.program
    with pytest.raises(ProgramError, match=message) as caught:
        trainer.load_program(Tampered(program.program, place, value, sums_up))
    assert "\n" not in str(caught.value)
    assert trainer.program is program and fingerprint(trainer) == before
    trainer.train(samples[3:6], ADAMW, 1e-3)
    after = fingerprint(trainer)
    trainer.load_parameters(initial_parameters(MODEL, 0))
    trainer.train(samples[:6], ADAMW, 1e-3)
    assert fingerprint(trainer) == after


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (ModelConfig(linear_rank=40), "rank 40"),
        (ModelConfig(format="dense"), "tensor"),
        (ModelConfig(encoders=30), "choose"),
    ],
    ids=("rank", "dense", "encoders"),
)
def test_a_model_that_does_not_fit_leaves_the_card_as_before(trainer, config, message):
    before = fingerprint(trainer)
    for call in (trainer.load_program, lambda config: open_trainer(config, trainer.device)):
        with pytest.raises(ProgramError, match=message) as caught:
            call(config)
        assert "\n" not in str(caught.value)
    assert fingerprint(trainer) == before


def test_a_models_program_is_compiled_once():
    first = compiled.compiled_program(MODEL)
    assert compiled.compiled_program(ModelConfig()) is first
    assert compiled.compiled_program(SMALL_RANK).sha256 != first.sha256
    assert compiled.compiled_program(MODEL, MODEL.parameter_shapes()).sha256 == first.sha256


# --- the profile


def test_the_profile_is_what_the_programs_steps_take(trainer, samples):
    trainer.profile()
    trainer.train(samples[:3], SGD, 1e-3)
    trainer.predict(samples[:3])
    program, lengths = trainer.program.program, samples[:3].lengths.tolist()
    table = trainer.profile()
    runs = [time_program(program.sample, tokens, number > 0).cycles for number, tokens in enumerate(lengths)]
    assert sum(table.values()) == sum(runs) + time_program(program.flush, 1).cycles
    assert {stage for stage, _ in table} == {"FP", "BP", "PU"} and ("BP", "embedding") in table
    assert trainer.profile() == {}


def test_cycles_by_layer_are_those_of_the_run(driver):
    program = compiled.compiled_program(MODEL).program
    for tokens in (2, 13, 32):
        table = cycles_by_layer(program.sample, tokens)
        assert sum(table.values()) == time_program(program.sample, tokens).cycles and min(table.values()) > 0


# --- the command


def test_train_records_the_overlay_and_the_program(tmp_path, capsys):
    run = tmp_path / "run"
    command = ["train", "--overlay", "trainer", "--rank", "8", "--samples", "20", "--device", "emulated"]
    assert cli.main([*command, "--out", str(run)]) == 0
    configuration = json.loads((run / "run.json").read_text())["configuration"]
    entry = next(entry for entry in read_manifest(overlays_folder()) if entry.name == "trainer")
    assert configuration["overlay"] == "trainer" and configuration["linear_rank"] == 8
    assert configuration["overlay.sha256"] == entry.sha256
    assert configuration["program.sha256"] == compiled.compiled_program(SMALL_RANK).sha256
    assert cli.main(["eval", "--run", str(run)]) == 0
    capsys.readouterr()
    assert cli.main(["train", "--overlay", "trainer", "--rank", "40", "--samples", "20"]) == 2
    assert capsys.readouterr().err.strip().splitlines()[-1].count("rank 40") == 1
