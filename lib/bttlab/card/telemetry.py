"""Power rails and temperature: modelled sensors of the emulated card, and readings of real and emulated cards.

The emulated card fills XRT's structure `xclDeviceInfo2`, from which PYNQ makes the rails, as for a real card. The
values are the power model's for the loaded overlay with a running or an idle kernel. The emulated kernel is slower than
the card's. Energy is therefore power times *modelled* time (`bttlab.estimate.card`), never the sum of these readings.
"""

from dataclasses import dataclass
from typing import Any

from pynq.pmbus import XrtRail, get_xrt_sysfs_rails

from bttlab.estimate.constants import read_data
from bttlab.estimate.power import PowerLevels

MILLI = 1000
PEX_VOLTS, PEX_3V3_VOLTS, VCCINT_VOLTS = 12.2, 3.3, 0.85


@dataclass(frozen=True)
class DeviceInfo:
    """The sensors of XRT's xclDeviceInfo2, under its names: millivolts, milliamperes, degrees Celsius.

    A U50 takes its power from the slot only and has no 12 V AUX: these sensors read 0, as on the card.
    """

    mPexCurr: int
    mCurrent: int
    mOnChipTemp: int
    m12VPex: int = round(PEX_VOLTS * MILLI)
    mVccIntVol: int = round(VCCINT_VOLTS * MILLI)
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


def modelled_info(levels: PowerLevels, running: bool) -> DeviceInfo:
    """Return the sensors of an emulated card, the temperature in the steady state."""
    power, vccint = (levels.running, levels.running_vccint) if running else (levels.idle, levels.idle_vccint)
    constants = read_data("power")["constants"]
    air, resistance, slot_3v3 = (constants[name]["value"] for name in ("air", "thermal_resistance", "idle_3v3"))
    return DeviceInfo(
        round((power - slot_3v3) / PEX_VOLTS * MILLI),
        round(vccint / VCCINT_VOLTS * MILLI),
        round(air + resistance * power),
    )


def modelled_rails(device: Any) -> dict[str, XrtRail]:
    """Return PYNQ's power rails of an emulated card, marked as modelled."""
    rails = get_xrt_sysfs_rails(device)
    for rail in rails.values():
        for part in (rail, rail.voltage, rail.current, rail.power):
            if part is not None:
                part.provenance = "modelled"
    return rails


def board_power(device: Any) -> float:
    """Return the power of an Alveo card in watts: that of the slot's 12 V, and of AUX if there is one.

    The slot's 3.3 V, under a watt, has no current sensor.
    """
    info = device.device_info
    return (info.m12VPex * info.mPexCurr + info.m12VAux * info.mAuxCurr) / MILLI**2
