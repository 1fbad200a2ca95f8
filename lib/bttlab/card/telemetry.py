"""Power rails and temperature: modelled sensors of the emulated card, and the same view of real and emulated cards.

The emulated card fills XRT's structure `xclDeviceInfo2`, from which PYNQ makes the rails, as for a real card. The
values are the power model's for the loaded overlay with a running or an idle kernel. They follow the emulated kernel in
wall time, and it is slower than the card's. Energy is therefore power times *modelled* time (`bttlab.estimate.card`),
never the sum of these readings.
"""

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pynq.pmbus import XrtRail, XrtSensor, get_xrt_sysfs_rails

from bttlab.estimate.constants import constant, read_data
from bttlab.estimate.power import PowerLevels

MILLI = 1000
MOST_PERIODS = 256  # that are recorded before the model advances
PEX_VOLTS, PEX_3V3_VOLTS, VCCINT_VOLTS = 12.2, 3.3, 0.85


@dataclass(frozen=True)
class DeviceInfo:
    """The sensors of XRT's xclDeviceInfo2, under its names: millivolts, milliamperes, degrees Celsius.

    A U50 takes its power from the slot only and has no 12 V AUX: these sensors read 0, as on the card.
    """

    m12VPex: int
    mPexCurr: int
    mVccIntVol: int
    mCurrent: int
    mOnChipTemp: int
    m12VAux: int = 0
    mAuxCurr: int = 0
    m12vSW: int = 0
    m3v3Pex: int = round(PEX_3V3_VOLTS * MILLI)
    m3v3Aux: int = 0
    m0v85: int = round(VCCINT_VOLTS * MILLI)
    m1v8Top: int = 1800
    mMgt0v9: int = 903
    mMgtVtt: int = 1204
    mSys5v5: int = 4987


class Telemetry:
    """Power and temperature of an emulated card over time.

    Each approaches the current level exponentially, with one time constant. The values are computed exactly at each
    reading, so nothing runs in between, and the same levels at the same times give the same values.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        constants: dict[str, Any] = {name: constant(one).value for name, one in read_data("power")["constants"].items()}
        self._air, self._resistance = constants["air"], constants["thermal_resistance"]
        self._thermal_time, self._sensor_time = constants["thermal_time"], constants["sensor_time"]
        self._slot_3v3 = constants["idle_3v3"]
        self._clock = clock
        self._lock = threading.Lock()
        self._running = 0
        self._periods: list[tuple[float, Callable[[], PowerLevels], int]] = []  # end, levels, running kernels
        self._levels: Callable[[], PowerLevels] = PowerLevels.without_overlay
        self._time = clock()
        levels = self._levels()
        self._power, self._vccint = levels.idle, levels.idle_vccint
        self._temperature = self._air + self._resistance * levels.idle

    def load(self, levels: Callable[[], PowerLevels] = PowerLevels.without_overlay) -> None:
        """Set the levels of a new overlay or program; `levels` is called at the next reading."""
        with self._lock:
            self._end_period()
            self._levels = levels

    def kernel(self, running: bool) -> None:
        """Record that a kernel starts or has ended."""
        with self._lock:
            self._end_period()
            self._running += 1 if running else -1

    @property
    def info(self) -> DeviceInfo:
        with self._lock:
            self._end_period()
            self._advance()
            power, vccint, temperature = self._power, self._vccint, self._temperature
        return DeviceInfo(
            m12VPex=round(PEX_VOLTS * MILLI),
            mPexCurr=round((power - self._slot_3v3) / PEX_VOLTS * MILLI),
            mVccIntVol=round(VCCINT_VOLTS * MILLI),
            mCurrent=round(vccint / VCCINT_VOLTS * MILLI),
            mOnChipTemp=round(temperature),
        )

    def _end_period(self) -> None:
        self._periods.append((self._clock(), self._levels, self._running))
        if len(self._periods) == MOST_PERIODS:
            self._advance()

    def _advance(self) -> None:
        periods, self._periods = self._periods, []
        for end, levels_of, running in periods:
            levels = levels_of()
            power = levels.running if running else levels.idle
            vccint = levels.running_vccint if running else levels.idle_vccint
            elapsed, self._time = end - self._time, end
            sensor = -math.expm1(-elapsed / self._sensor_time)
            self._power += (power - self._power) * sensor
            self._vccint += (vccint - self._vccint) * sensor
            target = self._air + self._resistance * power
            self._temperature += (target - self._temperature) * -math.expm1(-elapsed / self._thermal_time)


def modelled_rails(device: Any) -> dict[str, XrtRail]:
    """Return PYNQ's power rails of an emulated card, marked as modelled."""
    rails = get_xrt_sysfs_rails(device)
    for rail in rails.values():
        for part in (rail, rail.voltage, rail.current, rail.power):
            if part is not None:
                part.provenance = "modelled"
    return rails


class BoardSensor(XrtSensor):
    """A sensor of a board; `provenance` is "measured" or "modelled"."""

    provenance: str

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, {self.provenance}}}"


class _Board:
    """The parent of a card's sensors, so that PYNQ's DataRecorder reads the card once for all of them."""

    parents = ()

    def __init__(self, device: Any) -> None:
        self._device = device

    def get_value(self, parents=None) -> dict[str, float]:
        info = self._device.device_info
        watts = (info.m12VPex * info.mPexCurr + info.m12VAux * info.mAuxCurr) / MILLI**2
        return {"power": watts, "temperature": float(info.mOnChipTemp)}


def board_sensors(device: Any) -> dict[str, BoardSensor]:
    """Return sensors of an Alveo card's power in watts and its FPGA's temperature in degrees Celsius.

    The power is that of the slot's 12 V, and of AUX if there is one; the slot's 3.3 V, under a watt, has no current
    sensor.
    """
    board = _Board(device)
    sensors = {
        "power": BoardSensor("W", "board_power", 1, board, "power"),
        "temperature": BoardSensor("C", "fpga_temperature", 1, board, "temperature"),
    }
    for sensor in sensors.values():
        sensor.provenance = getattr(device, "provenance", "measured")
    return sensors
