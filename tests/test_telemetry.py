"""The emulated card's sensors: PYNQ's rails, modelled, after what its kernels do."""

import pynq
import pytest

from bttlab.card import EmulatedU50
from bttlab.card.telemetry import board_power
from bttlab.estimate.power import PowerLevels
from fake_trainer import until

from emulated_kernels import container

LEVELS = PowerLevels(idle=20, running=30, idle_vccint=4, running_vccint=12)


def test_rails_are_pynqs_and_say_that_they_are_modelled():
    card = EmulatedU50()
    rails = card.sensors
    assert {"12v_pex", "12v_aux", "3v3_pex", "vccint", "0v85", "1v8"} <= set(rails)
    assert rails["12v_pex"].power.value == pytest.approx(16.66, abs=0.05)
    assert rails["vccint"].voltage.value == 0.85 and rails["12v_aux"].power.value == 0
    for rail in rails.values():
        assert rail.provenance == "modelled"
        assert all(part.provenance == "modelled" for part in (rail.voltage, rail.current, rail.power) if part)


def test_power_and_temperature_follow_the_kernel(tmp_path):
    path = tmp_path / "small.xclbin"
    path.write_bytes(container())
    EmulatedU50.trust(path)
    card = EmulatedU50()
    overlay = pynq.Overlay(str(path), device=card)
    card._levels = lambda: LEVELS
    assert board_power(card) == pytest.approx(20 - 0.74, abs=0.02)
    temperature = card.device_info.mOnChipTemp
    calls = overlay.HBM0.allocate(1, "i4")
    handle = overlay.spin_1.start(calls, 500)
    assert until(lambda: board_power(card) == pytest.approx(30 - 0.74, abs=0.02))
    assert card.device_info.mOnChipTemp > temperature and card.sensors["vccint"].power.value == pytest.approx(
        12, abs=0.01
    )
    handle.wait()
    assert board_power(card) == pytest.approx(20 - 0.74, abs=0.02)
