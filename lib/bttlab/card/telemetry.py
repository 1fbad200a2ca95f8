"""Power rails and temperature: modelled sensors of the emulated card, and readings of real and emulated cards.

The emulated card fills XRT's structure `xclDeviceInfo2`, from which PYNQ makes the rails, as for a real card. The
values are the power model's for the loaded overlay with a running or an idle kernel. The emulated kernel is slower than
the card's. Energy is therefore power times *modelled* time (`bttlab.estimate.card`), never the sum of these readings.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pynq.pmbus import XrtRail, get_xrt_sysfs_rails

from bttlab.estimate.constants import read_data
from bttlab.estimate.power import PowerLevels

MILLI = 1000
PCI_DEVICES = Path("/sys/bus/pci/devices")
NODE_3V3 = "xmc.*/xmc_3v3_pex_curr"  # mA; of XRT's driver xocl or xclmgmt from 2.3 on (its pull request 1831)
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


# For each sensor of `DeviceInfo`: the rail in XRT's src/runtime_src/core/common/sensor.cpp, and what is measured there.
SENSORS = {
    "mPexCurr": ("12v_pex", "current"),
    "m12VPex": ("12v_pex", "voltage"),
    "mAuxCurr": ("12v_aux", "current"),
    "m12VAux": ("12v_aux", "voltage"),
    "mCurrent": ("vccint", "current"),
    "mVccIntVol": ("vccint", "voltage"),
    "m12vSW": ("12v_sw", "voltage"),
    "m3v3Pex": ("3v3_pex", "voltage"),
    "m3v3Aux": ("3v3_aux", "voltage"),
    "m1v8Top": ("1v8_top", "voltage"),
    "mMgt0v9": ("0v9_vcc", "voltage"),
    "mMgtVtt": ("mgt_vtt", "voltage"),
    "mSys5v5": ("5v5_system", "voltage"),
}
UNITS = {"voltage": "volts", "current": "amps"}
FPGA = "fpga0"  # in XRT's report of temperatures


def reported_info(electrical: Mapping[str, Any], thermal: Mapping[str, Any]) -> DeviceInfo:
    """Return the sensors of XRT's reports `electrical` and `thermal`.

    One that a card does not have is 0, and so is m0v85, which the reports leave out.
    """
    rails = {rail["id"]: rail for rail in electrical.get("power_rails", ())}
    values = {
        name: round(_number(rails.get(rail, {}).get(kind, {}).get(UNITS[kind])) * MILLI)
        for name, (rail, kind) in SENSORS.items()
    }
    places = {place["location_id"]: place for place in thermal.get("thermals", ())}
    return DeviceInfo(**values, m0v85=0, mOnChipTemp=round(_number(places.get(FPGA, {}).get("temp_C"))))


def reported_3v3_milliamperes(electrical: Mapping[str, Any]) -> int:
    """Return the current of the slot's 3.3 V from XRT's report `electrical`; 0 if a card does not have the sensor."""
    rails = {rail["id"]: rail for rail in electrical.get("power_rails", ())}
    return round(_number(rails.get("3v3_pex", {}).get("current", {}).get("amps")) * MILLI)


def _number(text: Any) -> float:
    """Return a number of XRT's reports, which are strings such as "12.100"; 0.0 for "N/A" and for none."""
    try:
        return float(text)
    except (TypeError, ValueError):
        return 0.0


def modelled_info(levels: PowerLevels, running: bool) -> DeviceInfo:
    """Return the sensors of an emulated card, the temperature in the steady state."""
    power, vccint = (levels.running, levels.running_vccint) if running else (levels.idle, levels.idle_vccint)
    constants = read_data("power")["constants"]
    air, resistance = (constants[name]["value"] for name in ("air", "thermal_resistance"))
    return DeviceInfo(
        round((power - modelled_3v3_milliamperes() * PEX_3V3_VOLTS / MILLI) / PEX_VOLTS * MILLI),
        round(vccint / VCCINT_VOLTS * MILLI),
        round(air + resistance * power),
    )


def modelled_3v3_milliamperes() -> int:
    """Return the current of the slot's 3.3 V of an emulated card, whatever it does."""
    return round(read_data("power")["constants"]["idle_3v3"]["value"] / PEX_3V3_VOLTS * MILLI)


def modelled_rails(device: Any) -> dict[str, XrtRail]:
    """Return PYNQ's power rails of an emulated card, marked as modelled."""
    rails = get_xrt_sysfs_rails(device)
    for rail in rails.values():
        for part in (rail, rail.voltage, rail.current, rail.power):
            if part is not None:
                part.provenance = "modelled"
    return rails


def board_power(device: Any) -> float:
    """Return the power of an Alveo card in watts: that of the slot's 12 V and 3.3 V, and of AUX if there is one.

    Where the driver has no node for the current of the 3.3 V, this part, under a watt, is left out.
    """
    info = device.device_info
    slot_3v3 = info.m3v3Pex * (_slot_3v3_milliamperes(device) or 0)
    return (info.m12VPex * info.mPexCurr + info.m12VAux * info.mAuxCurr + slot_3v3) / MILLI**2


def _slot_3v3_milliamperes(device: Any) -> int | None:
    """Return the current of the slot's 3.3 V, which XRT has in a node of sysfs alone; None if there is none.

    The node is that of the management function, which PYNQ finds, or of the user function in the card's PCIe slot.
    """
    if hasattr(device, "slot_3v3_milliamperes"):
        return device.slot_3v3_milliamperes
    slot = getattr(device.device_info, "mPciSlot", None)
    folders = [Path(path) for path in (getattr(device, "sysfs_path", None),) if path]
    if slot is not None:  # domain, bus, device and function, as XRT packs them
        address = f"{slot >> 16:04x}:{slot >> 8 & 0xFF:02x}:{slot >> 3 & 0x1F:02x}.{slot & 7}"
        folders.append(PCI_DEVICES / address)
    for folder in folders:
        for node in sorted(folder.glob(NODE_3V3)):
            try:
                return int(node.read_text())
            except (OSError, ValueError):  # of another user, or a sensor that the shell does not have
                continue
    return None
