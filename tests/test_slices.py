"""Drivers on a shared card: whatever happens between their calls, they train what they would train alone."""

import contextlib
import itertools
import linecache
import os
import re
import signal
import sys
import threading
import types
from collections.abc import Iterator

import numpy as np
import pynq
import pytest

import tiny_baseline
from bttlab import keeper as keepers
from bttlab.card import (
    EmulatedU50,
    OverlayError,
    kernel_driver,
    open_trainer,
    overlay,
    sharing,
    training_run,
)
from bttlab.card import trainer as trainer_module
from bttlab.card.kernel import TRAINER_KERNEL
from bttlab.card.sharing import FOLDER_VARIABLE, KeeperClient, keeper_of
from bttlab.commands import doctor
from bttlab.data import Samples
from bttlab.keeper import serving
from bttlab.model import ModelConfig, Optimizer, StateError, initial_parameters
from fake_trainer import until

from training_processor import state_digest

MODELS = ModelConfig(encoders=1), ModelConfig(encoders=1, linear_rank=8)
ADAMW, RATE = Optimizer("adamw"), 1e-3


@pytest.fixture(scope="module")
def samples() -> Samples:
    return tiny_baseline.samples(24, MODELS[0])


@pytest.fixture
def shared_card(tmp_path, monkeypatch) -> Iterator[EmulatedU50]:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    card = EmulatedU50()
    card.name = "emulated_u50_0"
    with serving(tmp_path / "bttlab-emulated-u50-0.shared"):
        yield card


def opened(card: EmulatedU50, seed: int):
    trainer = open_trainer(MODELS[seed], card)
    trainer.load_parameters(initial_parameters(MODELS[seed], seed))
    return trainer


def alone(seed: int, samples: Samples) -> tuple[str, list[float]]:
    """Train in steps of eight samples on an unshared card; return state and losses."""
    trainer = opened(EmulatedU50(), seed)
    losses = [trainer.train(samples[first : first + 8], ADAMW, RATE) for first in range(0, len(samples), 8)]
    return state_digest(trainer), np.concatenate(losses).tolist()


def others_have(card: EmulatedU50) -> None:
    other = keeper_of(card)
    other.acquire("")
    other.release()


@pytest.mark.parametrize("cleared", [True, False], ids=["cleared", "as the others left it"])
def test_two_models_in_turns_have_the_bits_of_each_alone(shared_card, samples, monkeypatch, cleared):
    monkeypatch.setattr(sharing, "SLICE_SECONDS", 0.0)  # each call has a slice of its own
    if not cleared:  # so a real card is
        monkeypatch.setattr(EmulatedU50, "lose_chip", lambda card: None)
    trainers = [opened(shared_card, seed) for seed in (0, 1)]
    losses = [[], []]
    for first in range(0, len(samples), 8):
        for trainer, found in zip(trainers, losses, strict=True):
            found += trainer.train(samples[first : first + 8], ADAMW, RATE).tolist()
            trainer.predict(samples[:2])
    for seed, trainer in enumerate(trainers):
        assert (state_digest(trainer), losses[seed]) == alone(seed, samples)


def test_a_chip_that_others_had_is_empty(samples):
    trainer = opened(EmulatedU50(), 0)
    trainer.train(samples[:1], ADAMW, RATE)
    trainer.device.lose_chip()
    with pytest.raises(OverlayError, match="NO_PROGRAM"):
        trainer.train(samples[:1], ADAMW, RATE)
    trainer._send(trainer.program.image)
    assert not any(values.any() for values in trainer.store_parameters().values())


TRACED = {module.__file__ for module in (trainer_module, kernel_driver, sharing, training_run)}


class Fault:
    """Do something at the n-th line that runs in the driver between taking and giving back the card."""

    def __init__(self, number: int, happens):
        self.left, self.happens = number, happens

    def __enter__(self):
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_):
        sys.settrace(None)

    def _trace(self, frame, event, _):
        if frame.f_code.co_filename not in TRACED:
            return None
        # CPython takes no interrupt between the end of a with block and its __exit__, nor at the word "try".
        source = linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip()
        if event == "line" and not source.startswith(("with ", "try:")):
            self.left -= 1
            if self.left == 0:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                self.happens()
        return self._trace


def states_alone(samples: Samples) -> list[str]:
    """The state after each sample on an unshared card, the first before all."""
    trainer, states = opened(EmulatedU50(), 0), []
    for first in range(len(samples)):
        states.append(state_digest(trainer))
        trainer.train(samples[first : first + 1], ADAMW, RATE)
    return [*states, state_digest(trainer)]


def train_on(trainer, samples: Samples) -> None:
    """Train on what is left of the samples, in calls of two, a time slice for each sample."""
    for first in range(int(trainer.store_optimizer_state()["step"]), len(samples), 2):
        trainer.train(samples[first : first + 2], ADAMW, RATE)


@pytest.mark.parametrize(
    ("what", "step"),  # lines from one fault to the next
    [("a loss", 23), ("an interrupt", 23), ("a kill", 101)]
    + [pytest.param(*which, marks=pytest.mark.long) for which in (("a loss", 5), ("an interrupt", 5), ("a kill", 13))],
)
def test_a_fault_at_any_line_of_a_slice_changes_no_bit(shared_card, samples, monkeypatch, what, step):
    """As SQLite is tested: the same training again and again, with the fault one line later each time."""
    samples = samples[:3]
    expected = states_alone(samples)
    trainer = opened(shared_card, 0)
    monkeypatch.setattr(sharing, "SLICE_SECONDS", 0.0)  # each call takes and gives back the card

    def lose():
        with monkeypatch.context() as patch:
            for seconds in ("OVERDUE_SECONDS", "LOADING_SECONDS"):  # whoever has the card has had it for too long
                patch.setattr(keepers, seconds, 0.0)
            others_have(shared_card)
        shared_card.lose_chip()

    happens = {"a loss": lose, "an interrupt": _interrupt, "a kill": lambda: os.kill(os.getpid(), signal.SIGKILL)}[what]
    for number in itertools.count(1, step):
        trainer.load_parameters(initial_parameters(MODELS[0], 0))
        others_have(shared_card)
        if what == "a kill":
            child = os.fork()
            if child == 0:
                mine = opened(shared_card, 0)
                with Fault(number, happens):
                    train_on(mine, samples)
                os._exit(0)
            _, status = os.waitpid(child, 0)
            reached = os.WIFSIGNALED(status)
            train_on(trainer, samples)
        else:
            with Fault(number, happens) as fault, contextlib.suppress(KeyboardInterrupt):
                train_on(trainer, samples)
            reached = fault.left <= 0
            assert state_digest(trainer) == expected[int(trainer.store_optimizer_state()["step"])], fault.where
            train_on(trainer, samples)
        assert state_digest(trainer) == expected[-1], number
        assert keeper_of(shared_card).queue() == []
        if not reached:
            break
    assert number > 100, number


def _interrupt():
    raise KeyboardInterrupt


def test_who_is_idle_holds_nothing(shared_card, samples):
    trainer = opened(shared_card, 0)
    keeper = keeper_of(shared_card)
    trainer.train(samples[:4], ADAMW, RATE)
    assert until(lambda: keeper.queue() == [])
    run = trainer.start(samples, ADAMW, RATE)
    with pytest.raises(OverlayError, match="the kernel is training already"):
        trainer.store_parameters()
    assert len(run.wait()) == len(samples) and until(lambda: keeper.queue() == [])
    trainer.load_parameters(initial_parameters(MODELS[0], 0))
    assert keeper.queue() == []  # they wait in the host's memory for the first call
    trainer.load_program(MODELS[1])
    with pytest.raises(StateError):
        trainer.train(samples[:1], ADAMW, RATE)


def test_what_users_see_of_the_queue(shared_card, monkeypatch):
    monkeypatch.setattr(pynq.Device, "_devices", [shared_card])
    first, second = keeper_of(shared_card), keeper_of(shared_card)
    first.acquire("")
    thread = threading.Thread(target=second.acquire, args=("",))
    thread.start()
    assert until(lambda: len(first.queue()) == 2)
    [check] = doctor._shared_cards()
    words = rf"process {os.getpid()} of user \w+ has the card, 1 more waiting; .* in about 0\.6 s \(modelled\)"
    assert check.status == "ok" and re.search(f"emulated_u50_0: {words}", check.detail)
    assert check.data == {"keeper": str(first.path), "queue": [os.getpid()] * 2}
    first.release()
    thread.join(60)
    monkeypatch.delenv(FOLDER_VARIABLE)
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
    monkeypatch.setattr(sharing, "SLICE_SECONDS", 0.0)
    monkeypatch.setattr(
        pynq,
        "Bitstream",
        lambda name, device: types.SimpleNamespace(download=lambda p: device.download(name, p)),
    )
    kept = []
    with serving(tmp_path / "keeper") as path:
        drivers = []
        for content in "ab":
            (tmp_path / content).write_text(content)
            card = FakeCard(str(tmp_path / content))
            drivers.append((card, sharing.TimeSlices(KeeperClient("card", path), card, {})))
        for number in (0, 0, 1, 0):
            drivers[number][1].run(kept.append, lambda: None)
    a, b = (str(tmp_path / content) for content in "ab")
    assert kept == [False, True, False, False]
    assert drivers[0][0].asked == [a, "open", "close", "open", "close", a, "open", "close"]
    assert drivers[1][0].asked == [b, "open", "close"]


def test_a_shared_real_card_is_for_the_training_processor(tmp_path, monkeypatch):
    card = FakeCard("")
    kernels = {"own_1": {"type": "xilinx.com:hls:own:1.0"}}
    card.get_bitfile_metadata = lambda name: types.SimpleNamespace(ip_dict=kernels)
    monkeypatch.setattr(overlay, "keeper_of", lambda card: KeeperClient("card", tmp_path / "keeper"))
    monkeypatch.setattr(pynq, "Overlay", lambda name, device: name)
    (tmp_path / "own.xclbin").write_text("")
    with pytest.raises(OverlayError, match=r"own.xclbin has other kernels .*, and .* is shared"):
        overlay._on_real_card(card, tmp_path / "own.xclbin", "own.xclbin", 0.0)
    kernels["own_1"]["type"] = TRAINER_KERNEL.vlnv
    with serving(tmp_path / "keeper") as path:
        loaded = overlay._on_real_card(card, tmp_path / "own.xclbin", "own.xclbin", 0.0)
        assert loaded == str(tmp_path / "own.xclbin")
        assert KeeperClient("card", path).queue() == []
