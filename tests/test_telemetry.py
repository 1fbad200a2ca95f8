"""The emulated card's sensors: PYNQ's rails, modelled, after what its kernels do."""

import math
import time
from types import SimpleNamespace

import numpy as np
import pynq
import pytest
from pynq.pmbus import DataRecorder

from bttlab.card import EmulatedU50
from bttlab.card.telemetry import Telemetry, board_sensors
from bttlab.estimate.power import PowerLevels
from fake_trainer import until

from emulated_kernels import container

LEVELS = PowerLevels(idle=20, running=30, idle_vccint=4, running_vccint=12)


@pytest.fixture
def clock():
    return SimpleNamespace(now=0.0)


@pytest.fixture
def telemetry(clock):
    return Telemetry(lambda: clock.now)


def watts(telemetry):
    info = telemetry.info
    return info.m12VPex * info.mPexCurr / 1e6


def test_power_follows_the_kernel_within_a_second(telemetry, clock):
    telemetry.load(lambda: LEVELS)
    clock.now = 10
    assert watts(telemetry) == pytest.approx(20 - 0.74, abs=0.02)
    telemetry.kernel(True)
    clock.now = 10.25
    assert watts(telemetry) == pytest.approx(20 - 0.74 + 10 * (1 - math.exp(-1)), abs=0.02)
    clock.now = 13
    assert watts(telemetry) == pytest.approx(30 - 0.74, abs=0.02)
    telemetry.kernel(False)
    clock.now = 16
    assert watts(telemetry) == pytest.approx(20 - 0.74, abs=0.02)


def test_levels_are_asked_for_when_somebody_reads_or_once_in_many_kernels(telemetry, clock):
    asked = []

    def levels(watts):
        asked.append(watts)
        return PowerLevels(idle=watts, running=watts, idle_vccint=4, running_vccint=12)

    telemetry.load(lambda: levels(20))
    clock.now = 10
    telemetry.load(lambda: levels(30))
    telemetry.kernel(True)
    assert not asked
    assert watts(telemetry) == pytest.approx(20 - 0.74, abs=0.02)
    clock.now = 10.25
    assert watts(telemetry) == pytest.approx(20 - 0.74 + 10 * (1 - math.exp(-1)), abs=0.02)
    asked.clear()
    for _ in range(1000):
        telemetry.kernel(True)
        telemetry.kernel(False)
    assert asked and len(telemetry._periods) < 1000


def test_rails_are_pynqs_and_say_that_they_are_modelled():
    card = EmulatedU50()
    rails = card.sensors
    assert {"12v_pex", "12v_aux", "3v3_pex", "vccint", "0v85", "1v8"} <= set(rails)
    assert rails["12v_pex"].power.value == pytest.approx(16.66, abs=0.05)
    assert rails["vccint"].voltage.value == 0.85 and rails["12v_aux"].power.value == 0
    for rail in rails.values():
        assert rail.provenance == "modelled"
        assert all(part.provenance == "modelled" for part in (rail.voltage, rail.current, rail.power) if part)


def test_the_data_recorder_sees_a_running_kernel(tmp_path):
    path = tmp_path / "small.xclbin"
    path.write_bytes(container())
    EmulatedU50.trust(path)
    card = EmulatedU50()
    overlay = pynq.Overlay(str(path), device=card)
    card._telemetry.load(lambda: LEVELS)
    calls = overlay.HBM0.allocate(1, "i4")
    sensors = board_sensors(card)
    assert {sensor.provenance for sensor in sensors.values()} == {"modelled"}
    assert repr(sensors["power"]).endswith("W, modelled}")
    recorder = DataRecorder(card.sensors["12v_pex"].power, sensors["power"], sensors["temperature"])
    with recorder.record(0.02):
        time.sleep(0.1)
        recorder.mark()
        overlay.spin_1.call(calls, 500)
        recorder.mark()
        assert until(lambda: recorder.frame["board_power"].iloc[-1] < recorder.frame["board_power"].max() - 3)
    frame = recorder.frame
    means = frame.groupby("Mark")["board_power"].max()
    assert means[1] > means[0] + 5 and means[1] > 26
    apart = np.abs(frame["12v_pex_power"] - frame["board_power"])  # read one after the other
    assert np.median(apart) < 1.5
