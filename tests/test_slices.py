"""Drivers on a shared card: whatever happens between their calls, they train what they would train alone."""

import os
import re
import types

import numpy as np
import pynq
import pytest

from bttlab.card import EmulatedU50, OverlayError, open_trainer, overlay, slices
from bttlab.card import trainer as trainer_module
from bttlab.card.card_lock import CardBusyError
from bttlab.card.machine import machine
from bttlab.card.sharing import FOLDER_VARIABLE, CardLine
from bttlab.commands import doctor
from bttlab.data import Samples, Vocabulary, encode, load_corpus
from bttlab.errors import BttlabError
from bttlab.lab import CardQueue
from bttlab.model import ModelConfig, Optimizer, StateError, initial_parameters
from bttlab.train import tensors_digest
from lab_trainers import our_threads, until

M = machine()
MODELS = ModelConfig(encoders=1), ModelConfig(encoders=1, linear_rank=8)
ADAMW, RATE = Optimizer("adamw"), 1e-3


@pytest.fixture(scope="module")
def samples() -> Samples:
    corpus = load_corpus("airline")
    vocabulary = Vocabulary.from_sentences(corpus.train.words, MODELS[0].vocabulary_size)
    return encode(corpus.train, vocabulary, corpus, MODELS[0])[:24]


@pytest.fixture
def shared_card(tmp_path, monkeypatch) -> EmulatedU50:
    (tmp_path / "bttlab-emulated-u50-0.shared").touch()
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    card = EmulatedU50()
    card.name = "emulated_u50_0"
    return card


def opened(card: EmulatedU50, seed: int):
    trainer = open_trainer(MODELS[seed], card)
    trainer.load_parameters(initial_parameters(MODELS[seed], seed))
    return trainer


def state(trainer) -> str:
    return tensors_digest(trainer.store_parameters() | trainer.store_optimizer_state())


def alone(seed: int, samples: Samples) -> tuple[str, list[float]]:
    """What training in steps of eight samples gives on a card of one's own."""
    trainer = opened(EmulatedU50(), seed)
    losses = [trainer.train(samples[first : first + 8], ADAMW, RATE) for first in range(0, len(samples), 8)]
    return state(trainer), np.concatenate(losses).tolist()


def line(card: EmulatedU50) -> CardLine:
    return slices.line_for(card)


def others_have(card: EmulatedU50) -> None:
    other = line(card)
    other.take(0)
    other.leave()


@pytest.mark.parametrize("cleared", [True, False], ids=["cleared", "as the others left it"])
def test_two_models_in_turns_have_the_bits_of_each_alone(shared_card, samples, monkeypatch, cleared):
    monkeypatch.setattr(slices, "SLICE_SECONDS", 0.0)  # each call has a slice of its own
    if not cleared:  # so a real card is
        monkeypatch.setattr(EmulatedU50, "lose_chip", lambda card: None)
    trainers = [opened(shared_card, seed) for seed in (0, 1)]
    losses = [[], []]
    for first in range(0, len(samples), 8):
        for trainer, found in zip(trainers, losses, strict=True):
            found += trainer.train(samples[first : first + 8], ADAMW, RATE).tolist()
            trainer.predict(samples[:2])
    for seed, trainer in enumerate(trainers):
        assert (state(trainer), losses[seed]) == alone(seed, samples)


def test_a_chip_that_others_had_is_empty(samples):
    trainer = opened(EmulatedU50(), 0)
    trainer.train(samples[:1], ADAMW, RATE)
    trainer.device.lose_chip()
    with pytest.raises(OverlayError, match="NO_PROGRAM"):
        trainer.train(samples[:1], ADAMW, RATE)
    trainer._send(trainer.program.image)
    assert not any(values.any() for values in trainer.store_parameters().values())


@pytest.mark.parametrize("command", [M.LOAD_PROGRAM, M.LOAD, M.TRAIN, M.STORE])
def test_who_was_stopped_in_a_slice_does_it_again(shared_card, samples, monkeypatch, command):
    """Another takes the card in the middle of a call, as if this process had been stopped there, and ruins the chip."""
    trainer, run, commands = opened(shared_card, 0), trainer_module.Trainer._run, []

    def interrupted(self, done, *arguments):
        run(self, done, *arguments)
        commands.append(done)
        if done == command and commands.count(done) == 2:
            with monkeypatch.context() as patch:
                patch.setattr("bttlab.card.sharing._may_go", lambda *_: True)
                others_have(shared_card)
            shared_card.lose_chip()

    monkeypatch.setattr(trainer_module.Trainer, "_run", interrupted)
    monkeypatch.setattr(slices, "SLICE_SECONDS", 0.0)
    losses = []
    for first in range(0, len(samples), 8):
        others_have(shared_card)  # so all has to be loaded
        losses += trainer.train(samples[first : first + 8], ADAMW, RATE).tolist()
    monkeypatch.setattr(trainer_module.Trainer, "_run", run)
    assert commands.count(command) > 2
    assert (state(trainer), losses) == alone(0, samples)


def test_an_interrupt_takes_back_its_call(shared_card, samples, monkeypatch):
    trainer = opened(shared_card, 0)
    losses = trainer.train(samples[:8], ADAMW, RATE).tolist()
    before = state(trainer)
    with monkeypatch.context() as patch:
        patch.setattr(trainer_module, "wait_to_the_end", lambda handle: (handle.wait(), _interrupt()))
        with pytest.raises(KeyboardInterrupt):
            trainer.train(samples[8:16], ADAMW, RATE)
    assert state(trainer) == before and line(shared_card).look() == []
    for first in (8, 16):
        losses += trainer.train(samples[first : first + 8], ADAMW, RATE).tolist()
    assert (state(trainer), losses) == alone(0, samples)


def _interrupt():
    raise KeyboardInterrupt


def test_who_is_idle_holds_nothing(shared_card, samples):
    trainer = opened(shared_card, 0)
    watcher = line(shared_card)
    trainer.train(samples[:4], ADAMW, RATE)
    assert until(lambda: watcher.look() == [])
    run = trainer.start(samples, ADAMW, RATE)
    with pytest.raises(OverlayError, match="the kernel is training already"):
        trainer.store_parameters()
    assert len(run.wait()) == len(samples) and until(lambda: watcher.look() == [])
    trainer.load_parameters(initial_parameters(MODELS[0], 0))
    assert watcher.look() == []  # they wait in the host's memory for the first call
    trainer.load_program(MODELS[1])
    with pytest.raises(StateError):
        trainer.train(samples[:1], ADAMW, RATE)


def test_a_card_nobody_can_open(shared_card, tmp_path):
    path = tmp_path / "bttlab-emulated-u50-0.shared"
    path.unlink()
    path.mkdir()
    with pytest.raises(CardBusyError, match=rf"{path}, the line for the shared card .*, cannot be used: it is of user"):
        open_trainer(MODELS[0], shared_card)


def test_what_users_are_told_of_the_line(shared_card, monkeypatch):
    monkeypatch.setattr(pynq.Device, "_devices", [shared_card])
    queue = CardQueue()
    try:
        assert "nobody is in line, a turn comes at once" in queue.widget.value
        first, second = line(shared_card), line(shared_card)
        first.take(0)
        second._get_in_line(0)
        assert until(lambda: "<b>you</b>" in queue.widget.value)
        assert re.search(r"on the card.*1\..*in line for 0\.\d s \(measured\)", queue.widget.value)
        told = rf"process {os.getpid()} of user \w+ is on it, 1 more in line; a turn comes in about 0\.6 s .* modelled"
        assert re.search(told, queue.widget.value)
        [check] = doctor._shared_cards()
        assert check.status == "ok" and re.search(f"emulated_u50_0: {told}", check.detail)
        assert check.data == {"file": str(first.path), "in_line": [os.getpid()] * 2}
    finally:
        queue.close()
    assert "bttlab-card-queue" not in our_threads()
    monkeypatch.delenv(FOLDER_VARIABLE)
    with pytest.raises(BttlabError, match=r"no card is shared here \(emulated_u50_0\); docs/hosts.md tells how one is"):
        CardQueue()
    assert list(doctor._shared_cards()) == []


class FakeCard(pynq.Device):
    """A real card, which notes what is asked of it."""

    def __init__(self, bitfile: str):
        self.name, self.tag, self.sysfs_path = "fake_u50", "xrt0", "/sys/devices/pci0000:00/0000:3b:00.1"
        self.bitfile_name, self.parser, self.asked = bitfile, None, []

    def open_context(self, description):
        self.asked.append("open")

    def free_bitstream(self):
        self.asked.append("close")

    def download(self, bitstream, parser):
        self.asked.append(bitstream)


def test_a_real_card_loads_an_overlay_where_another_was_and_keeps_no_context(tmp_path, monkeypatch):
    path = tmp_path / "line"
    path.touch()
    monkeypatch.setattr(slices, "SLICE_SECONDS", 0.0)
    monkeypatch.setattr(
        slices.pynq,
        "Bitstream",
        lambda name, device: types.SimpleNamespace(download=lambda p: device.download(name, p)),
    )
    drivers = []
    for content in "ab":
        (tmp_path / content).write_text(content)
        card = FakeCard(str(tmp_path / content))
        drivers.append((card, slices.Slices(CardLine("card", path), card, {})))
    kept = []
    for number in (0, 0, 1, 0):
        with drivers[number][1].slice() as is_current:
            kept.append(is_current)
    a, b = (str(tmp_path / content) for content in "ab")
    assert kept == [False, True, False, False]
    assert drivers[0][0].asked == [a, "open", "close", "open", "close", a, "open", "close"]
    assert drivers[1][0].asked == [b, "open", "close"]


def test_a_shared_real_card_is_for_the_training_processor(tmp_path, monkeypatch):
    card = FakeCard("")
    path = tmp_path / "line"
    path.touch()
    kernels = {"own_1": {"type": "xilinx.com:hls:own:1.0"}}
    card.get_bitfile_metadata = lambda name: types.SimpleNamespace(ip_dict=kernels)
    monkeypatch.setattr(overlay, "_from_path", lambda name: {("hw", "fake_u50"): tmp_path / "own.xclbin"})
    monkeypatch.setattr(overlay, "line_for", lambda card: CardLine("card", path))
    monkeypatch.setattr(pynq, "Overlay", lambda name, device: name)
    (tmp_path / "own.xclbin").write_text("")
    with pytest.raises(
        OverlayError, match=r"own.xclbin has other kernels than the training processor, and .* is shared"
    ):
        overlay.load_overlay("own.xclbin", card)
    kernels["own_1"]["type"] = trainer_module.TRAINER_KERNEL.vlnv
    assert overlay.load_overlay("own.xclbin", card) == str(tmp_path / "own.xclbin")
    assert CardLine("card", path).look() == []
