"""The power model, and what the emulated card's sensors show of it."""

from dataclasses import replace
from types import SimpleNamespace

import pynq
import pytest

from bttlab.card import EmulatedU50, open_trainer, start_kernel, telemetry
from bttlab.card.telemetry import board_power
from bttlab.estimate.card import CLOCK_MHZ, estimate, power_levels
from bttlab.estimate.constants import read_data
from bttlab.estimate.facts import U50
from bttlab.estimate.power import PowerLevels
from bttlab.model import ModelConfig
from fake_trainer import until

from emulated_kernels import container
from training_processor import SMALL

IDLE = read_data("published")["card"]["facts"]["idle_power"]["value"]


@pytest.fixture(scope="module")
def found():
    return estimate(ModelConfig(encoders=2), [13])


def test_the_board_is_between_idle_as_measured_and_its_limit(found):
    for mhz in (CLOCK_MHZ, 150):
        at = found.at_clock(mhz).power
        assert IDLE < at.loaded.low < at.running.low  # a kernel adds to what an idle card takes
        assert at.loaded.value < at.running.value < at.running.high < U50.board_watts


def test_the_emulated_cards_sensors_show_the_loaded_programs_power():
    trainer = open_trainer(SMALL, "emulated")
    card, alone = trainer.device, PowerLevels.without_overlay()
    levels = power_levels(trainer.program)
    assert alone.idle < levels.idle < levels.running
    assert 0 < levels.running_vccint - levels.idle_vccint < levels.running - levels.idle
    assert card._levels() == levels
    trainer.load_program(replace(SMALL, encoders=1))
    assert card._levels() != levels


def test_figures_say_that_they_are_modelled(found):
    values = found.power.to_dict()
    for figure in (values["running"], values["between_calls"], *values["components"].values()):
        assert figure["provenance"] == "modelled" and figure["how"] == "u50-4" and figure["unit"] == "W"


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


def test_the_current_of_the_slots_3v3_is_read_where_the_driver_has_it(tmp_path, monkeypatch):
    """The published reading of an idle U50: 12.213 V x 1.363 A and 3.300 V x 0.223 A are 17.4 W (XRT PR 5184)."""
    info = SimpleNamespace(m12VPex=12_213, mPexCurr=1363, m12VAux=0, mAuxCurr=0, m3v3Pex=3300, mPciSlot=0x3B01)
    card = SimpleNamespace(device_info=info, sysfs_path=None)
    monkeypatch.setattr(telemetry, "PCI_DEVICES", tmp_path / "devices")
    twelve_volts = 12.213 * 1.363
    assert board_power(card) == pytest.approx(twelve_volts)
    user = tmp_path / "devices" / "0000:3b:00.1" / "xmc.u.4194304"
    user.mkdir(parents=True)
    (user / "xmc_3v3_pex_curr").write_text("223\n")
    assert board_power(card) == pytest.approx(17.4, abs=0.05)
    management = tmp_path / "0000:3b:00.0"  # what PYNQ finds comes first
    (management / "xmc.m.4194304").mkdir(parents=True)
    (management / "xmc.m.4194304" / "xmc_3v3_pex_curr").write_text("100\n")
    card.sysfs_path = str(management)
    assert board_power(card) == pytest.approx(twelve_volts + 0.33)
    (management / "xmc.m.4194304" / "xmc_3v3_pex_curr").write_text("N/A")
    assert board_power(card) == pytest.approx(17.4, abs=0.05)


def test_power_and_temperature_follow_the_kernel(tmp_path):
    path = tmp_path / "small.xclbin"
    path.write_bytes(container())
    EmulatedU50.trust(path)
    card = EmulatedU50()
    overlay = pynq.Overlay(str(path), device=card)
    card._levels = lambda: LEVELS
    assert board_power(card) == pytest.approx(20, abs=0.02)
    temperature = card.device_info.mOnChipTemp
    calls = overlay.HBM0.allocate(1, "i4")
    handle = start_kernel(overlay.spin_1, calls, 500)
    assert until(lambda: board_power(card) == pytest.approx(30, abs=0.02))
    assert card.device_info.mOnChipTemp > temperature and card.sensors["vccint"].power.value == pytest.approx(
        12, abs=0.01
    )
    handle.wait()
    assert board_power(card) == pytest.approx(20, abs=0.02)
