"""Power rails and temperature: what the emulated card's satellite controller would report, and one view of all cards.

The emulated card fills the structure that XRT fills (`xclDeviceInfo2`), and PYNQ makes its rails of it as it does of a
real card's. The values are the power model's, for a card that has the loaded overlay and whose kernel runs or does not
just now. They follow in wall-clock time what the emulated kernel does, which is not as fast as the card's: energy is
power times *modelled* time (`bttlab.estimate.card`), never the sum of these readings.
"""

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pynq.pmbus import XrtRail, get_xrt_sysfs_rails

from bttlab.card.constants import constant, read_data

MILLI = 1000
MOST_PERIODS = 256  # that are not looked at yet
PEX_VOLTS, PEX_3V3_VOLTS, VCCINT_VOLTS = 12.2, 3.3, 0.85


@dataclass(frozen=True)
class PowerLevels:
    """Power of the board in watts, and of its VCCINT rail, between kernel calls and within one."""

    idle: float
    running: float
    idle_vccint: float
    running_vccint: float

    @classmethod
    def without_overlay(cls) -> "PowerLevels":
        """Return those of a card with nothing but its shell: measured on one, see data/u50/power.json."""
        idle, vccint = (constant(read_data("power")["constants"][name]).value for name in ("idle_board", "idle_vccint"))
        return cls(idle, idle, vccint, vccint)


@dataclass(frozen=True)
class DeviceInfo:
    """The sensors of XRT's xclDeviceInfo2, under its names: millivolt, milliampere, degrees Celsius.

    A U50 takes its power from the slot alone and has no 12 V AUX: these read 0, as on the card.
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

    Both follow the level of the moment with one time constant each, exactly: nothing runs between two readings, and the
    same levels at the same times give the same values.

    Parameters
    ----------
    clock : callable
        Seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        constants = {name: constant(entry).value for name, entry in read_data("power")["constants"].items()}
        self._air, self._resistance = constants["air"], constants["thermal_resistance"]
        self._thermal_time, self._sensor_time = constants["thermal_time"], constants["sensor_time"]
        self._slot_3v3 = constants["idle_3v3"]
        self._clock = clock
        self._lock = threading.Lock()
        self._running = 0
        self._periods: list[tuple[float, Callable[[], PowerLevels], int]] = []  # each one's end
        self._levels: Callable[[], PowerLevels] = PowerLevels.without_overlay
        self._time = clock()
        levels = self._levels()
        self._power, self._vccint = levels.idle, levels.idle_vccint
        self._temperature = self._air + self._resistance * levels.idle

    def load(self, levels: Callable[[], PowerLevels] = PowerLevels.without_overlay) -> None:
        """Take the levels of a new overlay or program; they are asked for when they are needed."""
        with self._lock:
            self._end_period()
            self._levels = levels

    def kernel(self, running: bool) -> None:
        """Note that a kernel starts or has ended."""
        with self._lock:
            self._end_period()
            self._running += 1 if running else -1

    @property
    def info(self) -> DeviceInfo:
        """The readings of now."""
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
    """Return PYNQ's rails of an emulated card, marked as modelled."""
    rails = get_xrt_sysfs_rails(device)
    for rail in rails.values():
        for part in (rail, rail.voltage, rail.current, rail.power):
            if part is not None:
                part.provenance = "modelled"
    return rails


class BoardSensor:
    """A sensor for PYNQ's DataRecorder.

    Attributes
    ----------
    name, unit : str
    provenance : {"measured", "modelled"}
    """

    def __init__(self, name: str, unit: str, provenance: str, parents: tuple, combine: Callable[..., float]) -> None:
        self.name, self.unit, self.provenance, self.parents = name, unit, provenance, parents
        self._combine = combine

    def get_value(self, parents=None) -> float:
        """Return the value, from those of its parents if these are known."""
        return self._combine(*([parent.get_value() for parent in self.parents] if parents is None else parents))

    @property
    def value(self) -> float:
        """The value of now."""
        return self.get_value()

    def __repr__(self) -> str:
        return f"Sensor {{name={self.name}, value={self.value:.2f}{self.unit}, {self.provenance}}}"


class _Info:
    """The root of a card's sensors: one reading for all that is derived from it."""

    parents = ()

    def __init__(self, device: Any) -> None:
        self._device = device

    def get_value(self, parents=None) -> Any:
        return self._device.device_info


def board_sensors(device: Any) -> dict[str, BoardSensor]:
    """Return a card's power in watts and its FPGA's temperature in degrees Celsius, of a real or emulated one alike.

    Parameters
    ----------
    device : pynq.Device
        An Alveo card, or the emulated one.

    Returns
    -------
    dict
        "power" (12 V of the slot and of AUX, where there is one; the slot's 3.3 V, under a watt, has no current sensor)
        and "temperature".
    """
    provenance = getattr(device, "provenance", "measured")
    info = (_Info(device),)

    def power(i: Any) -> float:
        return (i.m12VPex * i.mPexCurr + i.m12VAux * i.mAuxCurr) / MILLI**2

    return {
        "power": BoardSensor("board_power", "W", provenance, info, power),
        "temperature": BoardSensor("fpga_temperature", "C", provenance, info, lambda i: float(i.mOnChipTemp)),
    }
