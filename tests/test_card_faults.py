"""A real card, by pynq's XrtDevice and by our device on pyxrt: the bits of a training, faults, Ctrl-C."""

import contextlib
import signal
import threading
import time

import pytest

from bttlab.card import PyxrtCard, load_overlay, open_trainer, waiting
from bttlab.card.kernel_call import ErtCall
from bttlab.card.pyxrt_card import PyxrtCall
from bttlab.card.telemetry import board_power
from bttlab.card.waiting import CardFailedError
from bttlab.model import Optimizer, StateError, initial_parameters
from bttlab.util.errors import BttlabError
from card_training import MODEL, SAMPLES, opened, state_on_emulated_card, train

from training_processor import state_digest


@pytest.fixture
def trainer(real_card):
    return opened()


def test_training_gives_the_bits_of_the_emulated_card(real_card, trainer):
    assert trainer.device is real_card and type(real_card).__name__ in ("XrtDevice", "PyxrtCard")
    run = trainer.start(SAMPLES, Optimizer("adamw"), 1e-3)
    assert len(run.wait()) == len(SAMPLES)
    assert state_digest(trainer) == state_on_emulated_card()
    assert real_card.clocks == {"clock0": {"frequency": 200}}
    assert board_power(real_card) >= 12.1 * 1.5


def test_a_kernel_that_hangs_ends_at_its_time_limit(trainer, monkeypatch):
    monkeypatch.setattr(waiting, "LEAST_SECONDS", 0.2)
    monkeypatch.setenv("FAKE_XRT_FAULT", "hang")
    with pytest.raises(CardFailedError, match=r"has not ended .* xbutil reset --device 0000:3b:00.1"):
        train(trainer)
    for call in (
        lambda: trainer.load_parameters(initial_parameters(MODEL, 0)),
        lambda: load_overlay("trainer").trainer_1,
    ):
        with pytest.raises(BttlabError, match="xbutil reset"):
            call()
    with pytest.raises(StateError):
        train(trainer)


def test_a_suspension_does_not_count_against_the_time_limit(real_card, trainer, monkeypatch):
    """As SIGSTOP and SIGCONT while a kernel runs: the clock goes on by an hour between two polls."""
    monotonic, polls = time.monotonic, []
    monkeypatch.setenv("FAKE_XRT_FAULT", "slow")
    handle = PyxrtCall if isinstance(real_card, PyxrtCard) else ErtCall
    ended = handle.ended
    monkeypatch.setattr(handle, "ended", lambda *arguments: polls.append(1) or ended(*arguments))
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + 3600.0 * (len(polls) > 2))
    assert train(trainer) == state_on_emulated_card() and len(polls) > 3


@pytest.mark.parametrize("handler", [signal.default_int_handler, lambda number, frame: None])
def test_ctrl_c_ends_the_wait_for_a_kernel_that_hangs(trainer, monkeypatch, handler):
    monkeypatch.setenv("FAKE_XRT_FAULT", "hang")
    before = signal.signal(signal.SIGINT, handler)
    timer = threading.Timer(0.2, signal.raise_signal, (signal.SIGINT,))
    timer.start()
    try:
        with pytest.raises(CardFailedError, match="Ctrl-C, and the kernel"):  # and not its time limit
            train(trainer)
    finally:
        signal.signal(signal.SIGINT, before)
        timer.join()


def test_a_kernel_that_ends_after_ctrl_c_leaves_a_card_that_works(real_card, trainer, monkeypatch):
    monkeypatch.setenv("FAKE_XRT_FAULT", "slow")
    timer = threading.Timer(0.1, signal.raise_signal, (signal.SIGINT,))
    timer.start()
    with pytest.raises(CardFailedError, match="Ctrl-C"):
        train(trainer)
    timer.join()
    monkeypatch.delenv("FAKE_XRT_FAULT")
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with contextlib.suppress(CardFailedError):
            waiting.check_idle(real_card)
            break
        time.sleep(0.05)
    trainer.load_parameters(initial_parameters(MODEL, 0))
    assert train(trainer) == state_on_emulated_card()


@pytest.mark.parametrize(
    ("fault", "message"),
    [("lost", "the card is gone"), ("abort", "the kernel ended with an error")],
)
def test_a_card_that_fails_while_it_trains_is_one_line(real_card, trainer, monkeypatch, fault, message):
    monkeypatch.setenv("FAKE_XRT_FAULT", fault)
    with pytest.raises(CardFailedError, match=message) as caught:
        train(trainer)
    assert "\n" not in str(caught.value)
    state = "(state ert_cmd_state.ERT_CMD_STATE_ABORT)"  # PYNQ's device does not report it
    assert (state in str(caught.value)) == (isinstance(real_card, PyxrtCard) and fault == "abort")


@pytest.mark.parametrize("loaded", [False, True])
def test_an_overlay_that_xrt_refuses(real_card, monkeypatch, loaded):
    if loaded:
        load_overlay("trainer").trainer_1  # noqa: B018 - opens a context
    monkeypatch.setenv("FAKE_XRT_FAULT", "load")
    with pytest.raises(CardFailedError, match="the card's shell is not the overlay's"):
        load_overlay("trainer")
    if isinstance(real_card, PyxrtCard):  # PYNQ's own names the kernels of what was refused
        assert bool(real_card.ip_dict) == loaded


def test_a_kernel_of_another_name(real_card, monkeypatch):
    monkeypatch.setenv("FAKE_XRT_FAULT", "name")
    with pytest.raises(CardFailedError, match="XRT does not find it"):
        open_trainer(MODEL)


XRT_CALLS = ("LoadXclBin", "OpenContext", "GetDeviceInfo2", "AllocBO", "SyncBO", "ExecBuf", "ExecWait")
PYXRT_CALLS = ("load_xclbin", "kernel", "get_info", "bo", "sync", "start", "wait")


@pytest.mark.parametrize(
    ("real_card", "function"),
    [*(("card", f"xcl{name}") for name in XRT_CALLS), *(("pyxrt_card", name) for name in PYXRT_CALLS)],
    indirect=["real_card"],
)
@pytest.mark.parametrize("call", [1, 2, 5])
def test_an_interrupt_in_a_call_leaves_a_card_that_works(real_card, monkeypatch, function, call):
    monkeypatch.setenv("FAKE_XRT_INTERRUPT", f"{function}:{call}")
    trained, interrupts = "", 0
    for _ in range(2):  # the second is not interrupted
        try:
            trained = train(opened())
        except KeyboardInterrupt:
            interrupts += 1
    assert interrupts == 1 or (call > 1 and not interrupts)  # not each is called so often
    assert trained == state_on_emulated_card()
