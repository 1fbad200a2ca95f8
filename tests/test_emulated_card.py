"""The emulated U50 behaves as a card in a slot does, through PYNQ's own calls."""

import os
import subprocess
import sys
import threading
import time
from contextlib import nullcontext

import numpy as np
import pynq
import pytest
import torch

from bttlab.card import EmulatedU50, start_kernel
from bttlab.util.errors import BttlabError

from emulated_kernels import call, container

IDLE, DONE, READY, START = 4, 2, 8, 1


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("overlay") / "small.xclbin"
    path.write_bytes(container())
    EmulatedU50.trust(path)
    return path


@pytest.fixture
def card():
    return EmulatedU50()


@pytest.fixture
def overlay(path, card):
    return pynq.Overlay(str(path), device=card)


def buffers(overlay, n=1000):
    a = overlay.HBM0.allocate(n, "f4")
    b, c = (overlay.HBM1.allocate(n, "f4") for _ in range(2))
    a[:], b[:] = 1, np.arange(n)
    return a, b, c


def test_a_plain_overlay_on_the_default_card(path):
    overlay = pynq.Overlay(str(path))
    assert overlay.device is pynq.Device.active_device and isinstance(overlay.device, EmulatedU50)
    assert overlay.device.name.startswith("emulated_u50_")
    a = pynq.allocate(16, "f4", target=overlay.HBM0)
    b, c = (pynq.allocate((4, 4), np.float32, target=overlay.HBM1) for _ in range(2))
    assert not a.any() and a.device_address // (256 << 20) == 0 and c.device_address // (256 << 20) == 1
    a[:], b[:] = 3, 1
    a.sync_to_device()
    b.sync_to_device()
    call(overlay.vadd_1, a, b, c, 16, 0.5)
    c.sync_from_device()
    assert (c == 3.5).all()
    overlay.device.free_bitstream()
    assert not overlay.device.ip_dict


@pytest.mark.skipif(not hasattr(pynq.DefaultIP, "_start_sw"), reason="this PYNQ has no calls of kernels")
def test_the_calls_of_pynq_3(overlay):
    assert str(overlay.vadd_1.signature) == "(a: 'float*', b: 'float*', c: 'float*', n: 'int', scale: 'float')"
    a, b, c = buffers(overlay, 16)
    a.sync_to_device()
    overlay.vadd_1.call(a, b, c, scale=0.5, n=16)
    c.sync_from_device()
    assert (c == 1).all()
    overlay.free()
    assert not overlay.device.ip_dict


def test_a_forgotten_sync_shows(overlay):
    a, b, c = buffers(overlay)
    call(overlay.vadd_1, a, b, c, 1000, 2.0)
    assert not c.any()  # not fetched
    c.sync_from_device()
    assert not c.any()  # computed from what the card had: zeros
    a.sync_to_device()
    b[500:].sync_to_device()  # a view is enough, and no more than the view goes
    call(overlay.vadd_1, a, b, c, 1000, 2.0)
    c[:600].sync_from_device()
    expected = np.where(np.arange(1000) < 500, 1, 1 + 2 * np.arange(1000))
    expected[600:] = 0
    np.testing.assert_array_equal(c, expected)


def test_the_control_register(overlay):
    calls = overlay.HBM0.allocate(1, "i4")
    unit = overlay.spin_1
    assert unit.read(0) == IDLE
    unit.write(0x10, calls.device_address)
    unit.write(0x14, calls.device_address >> 32)
    unit.write(0x1C, 50)
    assert unit.read(0x10) == calls.device_address
    assert unit.read(0x1C) == int(unit.register_map.milliseconds) == 50
    assert unit.read(4) == unit.read(0x18) == 0  # interrupts and the reserved word
    unit.write(0x18, 1)
    assert unit.read(0x18) == 0
    unit.write(0, START)
    assert unit.read(0) == START
    unit.write(0, 0)  # does not stop it
    while (control := unit.read(0)) & START:
        pass
    assert control == DONE | IDLE | READY
    assert unit.read(0) == IDLE  # cleared by the read
    calls.sync_from_device()
    assert calls[0] == 1


def test_a_kernel_runs_beside_python(overlay):
    calls = overlay.HBM0.allocate(1, "i4")
    threads = set(threading.enumerate())
    begin = time.monotonic()
    handle = start_kernel(overlay.spin_1, calls, 1500)  # milliseconds: long enough for a machine that is busy elsewhere
    assert len(set(threading.enumerate()) - threads) == 1
    assert [overlay.spin_1.read(0) for _ in range(3)] == 3 * [START]
    used = time.thread_time()
    handle.wait()
    assert time.monotonic() - begin >= 1.5
    assert time.thread_time() - used < 0.75  # waiting is no busy loop: this thread's processor time, at most half
    assert not set(threading.enumerate()) - threads


def test_what_must_not_happen_while_a_kernel_runs(overlay, card, path):
    calls = overlay.HBM0.allocate(1, "i4")
    handle = start_kernel(overlay.spin_1, calls, 200)
    for action in (
        lambda: start_kernel(overlay.spin_1, calls, 0),
        lambda: pynq.Overlay(str(path), device=card),
        card.free_bitstream,
        card.close,
    ):
        with pytest.raises(BttlabError, match="spin_1 is running: wait for it before you"):
            action()
    handle.wait()
    calls.sync_from_device()
    assert calls[0] == 1 and overlay.is_loaded()
    call(overlay.spin_1, calls, 0)


def test_cards_share_nothing(path):
    overlays = [pynq.Overlay(str(path), device=EmulatedU50()) for _ in range(2)]
    calls = [overlay.HBM0.allocate(1, "i4") for overlay in overlays]
    assert calls[0].device_address == calls[1].device_address
    handles = [start_kernel(overlay.spin_1, buffer, 20) for overlay, buffer in zip(overlays, calls, strict=True)]
    overlays[0].spin_1.read(0)
    for handle in handles:
        handle.wait()
    for _ in range(2):
        call(overlays[1].spin_1, calls[1], 0)
    for buffer in calls:
        buffer.sync_from_device()
    assert [int(buffer[0]) for buffer in calls] == [1, 3]
    with pytest.raises(BttlabError, match="the array is not in device memory"):
        (calls[0] + 1).sync_to_device()


def test_arguments_that_are_no_buffers_of_the_card(overlay, path):
    a, b, c = buffers(overlay, 64)
    elsewhere = pynq.Overlay(str(path), device=EmulatedU50()).HBM0.allocate(1 << 20, "u1")[1 << 19 :]

    def refused(*arguments):
        with pytest.raises(BttlabError) as caught:
            call(overlay.vadd_1, *arguments, 1, 1.0)
        assert overlay.vadd_1.read(0) == IDLE
        return str(caught.value)

    assert "argument a" in refused(elsewhere, b, c) and "is in no buffer of this card" in refused(elsewhere, b, c)
    assert "argument a, device address 0x10000000, is in HBM[1]" in refused(b, b, c)
    assert "argument b" in refused(a, b[1:], c) and "no multiple of 64" in refused(a, b[1:], c)
    assert "argument a is a view with strides (-4,)" in refused(a[::-1], b, c)
    assert "argument c is a view with strides (8,)" in refused(a, b, c[::2])
    with pytest.raises(BttlabError, match="argument a, device address 0x0"):
        overlay.vadd_1.write(0x10, 0)
        overlay.vadd_1.write(0x14, 0)
        overlay.vadd_1.write(0, START)
    call(overlay.vadd_1, a[1:], b[16:], c[1:], 8, 1.0)  # views are fine where their ports can reach them


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda overlay: overlay.vadd_1.write(0, 0x81), "no auto-restart"),
        (lambda overlay: overlay.device.read_registers(0x900000, 4), "no registers at 0x900000"),
        (lambda overlay: overlay.device.write_registers(0x800FFC, bytes(8)), "no registers at 0x800ffc"),
        (lambda overlay: overlay.device.get_memory_by_name("DDR[0]"), "no memory bank 'DDR.0.'"),
        (lambda overlay: pynq.allocate(4, target=overlay.device), "choose one"),
        (lambda overlay: start_kernel(overlay.spin_1, 1), "1 values for the 2 arguments calls, milliseconds"),
        (lambda overlay: EmulatedU50().allocate(4, "u4"), "has no overlay"),
    ],
)
def test_misuse_is_one_clear_line(overlay, misuse, message):
    with pytest.raises(BttlabError, match=message):
        misuse(overlay)


@pytest.mark.parametrize("waits", [False, True])
def test_floating_point_modes_of_the_host_do_not_reach_kernels(overlay, card, waits):
    a, b, c = buffers(overlay, 16)
    a[:], b[:] = 0, 1e-40  # a subnormal number
    a.sync_to_device()
    b.sync_to_device()
    torch.set_flush_denormal(True)
    try:
        with card.waited_for() if waits else nullcontext():
            call(overlay.vadd_1, a, b, c, 16, 0.5)
        assert not (torch.full((16,), 1e-40) * 0.5).any()  # and kernels leave them to the host
    finally:
        torch.set_flush_denormal(False)
    c.sync_from_device()
    assert (c == np.float32(1e-40) / 2).all() and c.all()


def run_python(code: str, **environment: str) -> str:
    command = [sys.executable, "-W", "error", "-c", code]
    result = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0 and not result.stderr, result.stderr
    return result.stdout


@pytest.mark.long
def test_the_import_lists_the_card_without_a_warning():
    code = "import bttlab.card, pynq; print([card.name for card in pynq.Device.devices])"
    assert run_python(code) == "['emulated_u50_0']\n"
    assert run_python(code, BTTLAB_EMULATED_CARDS="3").count("emulated_u50_") == 3


@pytest.mark.long
@pytest.mark.every_python
def test_a_process_ends_cleanly_while_a_kernel_runs(path):
    code = (
        f"import pynq, bttlab.card; overlay = pynq.Overlay({str(path)!r}); calls = overlay.HBM0.allocate(1, 'i4'); "
        "bttlab.card.start_kernel(overlay.spin_1, calls, 200); print('started')"
    )
    sha256 = EmulatedU50.trust(path)
    assert run_python("import warnings; warnings.simplefilter('ignore'); " + code, BTTLAB_TRUST=sha256) == "started\n"
