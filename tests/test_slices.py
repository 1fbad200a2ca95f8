"""Drivers on a shared card: whatever happens between their calls, they train what they would train alone."""

import contextlib
import itertools
import linecache
import os
import signal
import sys
import types
from collections.abc import Iterator

import numpy as np
import pynq
import pytest

import tiny_baseline
from bttlab.card import EmulatedU50, OverlayError, kernel_driver, open_trainer, overlay, sharing, training_run
from bttlab.card import keeper as keepers
from bttlab.card import trainer as trainer_module
from bttlab.card.kernel import TRAINER_KERNEL
from bttlab.card.sharing import shared
from bttlab.compiler.module_file import module_of_source
from bttlab.data import Samples
from bttlab.model import ModelConfig, Optimizer, StateError, initial_parameters
from fake_trainer import until
from keepers import keeping

from conftest import ROOT
from training_processor import state_digest

xrt_calls = pytest.importorskip("pynq._3rdparty.xrt", reason="this PYNQ has no device for Alveo cards")
MODELS = ModelConfig(encoders=1), ModelConfig(encoders=1, linear_rank=8)
MODULES = ROOT / "tests" / "helpers" / "sample_modules.py"
ADAMW, RATE = Optimizer("adamw"), 1e-3
UUID = slice(416, 432)  # of an .xclbin


@pytest.fixture(scope="module")
def samples() -> Samples:
    return tiny_baseline.samples(24, MODELS[0])


@pytest.fixture
def shared_card(card, tmp_path, monkeypatch) -> Iterator[pynq.Device]:
    """A card of the fake XRT with a keeper."""
    monkeypatch.setattr(sharing, "FOLDER", tmp_path)
    with keeping(tmp_path / "bttlab-0000:3b:00.1.shared"):
        yield card


def opened(card: pynq.Device, seed: int):
    trainer = open_trainer(MODELS[seed], card)
    trainer.load_parameters(initial_parameters(MODELS[seed], seed))
    return trainer


def alone(seed: int, samples: Samples) -> tuple[str, list[float]]:
    """Train in steps of eight samples on an emulated card; return state and losses."""
    trainer = opened(EmulatedU50(), seed)
    losses = [trainer.train(samples[first : first + 8], ADAMW, RATE) for first in range(0, len(samples), 8)]
    return state_digest(trainer), np.concatenate(losses).tolist()


def others_have(card: pynq.Device) -> None:
    """Let another client have the card, which loads another overlay if no kernel is running."""
    other = shared(card)
    other.acquire()
    with open(card.bitfile_name, "rb") as file:
        data = bytearray(file.read())
    data[UUID] = bytes(16)
    xrt_calls.xclLoadXclBin(card.handle, bytes(data))
    other.release()


@pytest.mark.parametrize("has_other_overlay", [False, True])
def test_two_models_in_turns_have_the_bits_of_each_alone(shared_card, samples, has_other_overlay):
    trainers = [opened(shared_card, seed) for seed in (0, 1)]
    losses = [[], []]
    for first in range(0, len(samples), 8):
        for trainer, found in zip(trainers, losses, strict=True):
            found += trainer.train(samples[first : first + 8], ADAMW, RATE).tolist()
            if has_other_overlay:
                others_have(shared_card)
            trainer.predict(samples[:2])
    for seed, trainer in enumerate(trainers):
        assert (state_digest(trainer), losses[seed]) == alone(seed, samples)


def test_rows_of_a_table_in_the_hosts_memory_come_in_each_slice(shared_card, samples):
    """Two programs with tables of their own, both larger than all banks, in turns on one card."""
    models = [module_of_source(MODULES.read_bytes(), MODULES, "Frozen", seed=seed) for seed in (0, 1)]
    tokens = np.where(np.arange(8) < samples.lengths[:, None], 30521 - samples.tokens[:, :8], 0)
    slots, none = samples.slots[:, :8] % 40, 0 * samples.intents
    short = Samples(tokens, np.minimum(samples.lengths, 8), none, slots)
    found = []
    for cards in ([shared_card, shared_card], [EmulatedU50(), EmulatedU50()]):
        trainers, losses = [open_trainer(model, card) for model, card in zip(models, cards, strict=True)], []
        for trainer, model in zip(trainers, models, strict=True):
            trainer.load_parameters(model.parameters())
            assert trainer.program.layout.in_records == "table.weight"
        for first in range(0, len(short), 8):
            for trainer in trainers:
                losses += trainer.train(short[first : first + 8], ADAMW, RATE).tolist()
                losses += trainer.predict(short[:2]).losses.tolist()
        found.append((losses, *map(state_digest, trainers)))
    assert found[0] == found[1]


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
    [("a loss", 41), ("an interrupt", 41), ("a kill", 151)]
    + [pytest.param(*which, marks=pytest.mark.long) for which in (("a loss", 9), ("an interrupt", 9), ("a kill", 23))],
)
def test_a_fault_at_any_line_of_a_slice_changes_no_bit(shared_card, samples, monkeypatch, what, step):
    """As SQLite is tested: the same training again and again, with the fault one line later each time."""
    samples = samples[:3]
    expected = states_alone(samples)
    trainer = opened(shared_card, 0)
    monkeypatch.setattr(trainer_module, "SLICE_SECONDS", 0.0)  # a sample in each slice

    happens = {
        "a loss": lambda: _lose(shared_card, monkeypatch),
        "an interrupt": _interrupt,
        "a kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    }[what]
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
        others_have(shared_card)  # who is interrupted before the release is cut off after its slice
        assert until(lambda: shared(shared_card).queue() == []), number
        if not reached:
            break
    assert number > 100, number


def _lose(card: pynq.Device, monkeypatch) -> None:
    """End the time slice at once, and let another client load its overlay."""
    with monkeypatch.context() as patch:
        patch.setattr(keepers._Client, "end", property(lambda client: 0.0, lambda client, end: None), raising=False)
        others_have(card)


def test_a_slice_that_is_lost_while_the_overlay_is_loaded_is_repeated(shared_card, samples, monkeypatch):
    trainer, download = opened(shared_card, 0), pynq.Bitstream.download

    def lose_once(bitstream, parser):
        download(bitstream, parser)
        monkeypatch.setattr(pynq.Bitstream, "download", download)
        _lose(shared_card, monkeypatch)

    others_have(shared_card)
    monkeypatch.setattr(pynq.Bitstream, "download", lose_once)
    train_on(trainer, samples[:3])
    assert state_digest(trainer) == states_alone(samples[:3])[-1]


def _interrupt():
    raise KeyboardInterrupt


def test_who_is_idle_holds_nothing(shared_card, samples):
    trainer = opened(shared_card, 0)
    share = shared(shared_card)
    trainer.train(samples[:4], ADAMW, RATE)
    assert until(lambda: share.queue() == [])
    run = trainer.start(samples, ADAMW, RATE)
    with pytest.raises(OverlayError, match="the card is training already"):
        trainer.store_parameters()
    assert len(run.wait()) == len(samples) and until(lambda: share.queue() == [])
    trainer.load_parameters(initial_parameters(MODELS[0], 0))
    assert share.queue() == []  # they wait in the host's memory for the first call
    trainer.load_program(MODELS[1])
    with pytest.raises(StateError):
        trainer.train(samples[:1], ADAMW, RATE)


def test_a_shared_card_is_for_the_training_processor(shared_card, monkeypatch):
    kernels = {"own_1": {"type": "xilinx.com:hls:own:1.0"}}
    monkeypatch.setattr(
        shared_card, "get_bitfile_metadata", lambda name: types.SimpleNamespace(ip_dict=kernels), raising=False
    )
    monkeypatch.setattr(pynq, "Overlay", lambda name, device: name)
    with pytest.raises(OverlayError, match=r"own.xclbin has other kernels .*, and .* is shared"):
        overlay._on_real_card(shared_card, "own.xclbin", "own.xclbin", 0.0)
    kernels["own_1"]["type"] = TRAINER_KERNEL.vlnv
    assert overlay._on_real_card(shared_card, "own.xclbin", "own.xclbin", 0.0) == "own.xclbin"
    assert until(lambda: shared(shared_card).queue() == [])
