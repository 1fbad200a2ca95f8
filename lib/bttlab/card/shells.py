"""Match overlays with cards as XRT does: by the UUID of the shell's interface, otherwise by the platform's name."""

import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any, TypeAlias

import pynq

from bttlab.card.emulation import EmulatedU50
from bttlab.card.pyxrt_card import PyxrtCard
from bttlab.card.xrt import LAST_PYNQ, VARIABLE, pynq_version

Card: TypeAlias = Any  # a pynq.Device, whose class does not declare the attributes of cards
PCI_DEVICES = Path("/sys/bus/pci/devices")
XILINX = "0x10ee"  # AMD's vendor number of FPGA cards
_RELEASE = re.compile(r"_[0-9]{6}_[0-9]+$")
_UUID = re.compile(rb"[0-9a-f]{32}")


def shell_of(platform: str) -> str:
    """Return the name of the shell that a platform is for.

    Overlays name the development platform (xilinx_u50_gen3x16_xdma_5_202210_1), cards name the flashed partition
    (xilinx_u50_gen3x16_xdma_base_5). Without the release and "base" the names are equal.
    """
    return _RELEASE.sub("", platform).replace("_base_", "_")


def pcie_address(card: Card) -> str | None:
    """Return a real card's PCIe address, such as 0000:3b:00.1; None if the driver does not report it."""
    if isinstance(card, PyxrtCard):
        return card.bdf
    slot = getattr(getattr(card, "_info", None), "mPciSlot", 0)
    return f"{slot >> 16:04x}:{slot >> 8 & 0xFF:02x}:{slot >> 3 & 0x1F:02x}.{slot & 7}" if slot else None


def card_interfaces(card: Card) -> frozenset[str]:
    """Return the UUIDs of a card's shell interfaces that XRT or its drivers list; empty if they list none."""
    address, found = pcie_address(card), set()
    for function in PCI_DEVICES.glob(f"{address[:-1]}*") if address else ():
        try:
            found.update(_UUID.findall((function / "interface_uuids").read_bytes().lower()))
        except OSError:
            continue
    listed = frozenset(uuid.decode() for uuid in found)
    return listed or (card.interfaces if isinstance(card, PyxrtCard) else listed)


def suits(card: Card, platform: str, interfaces: Collection[str] = ()) -> bool:
    if isinstance(card, EmulatedU50):
        return card.platform == platform
    on_card = card_interfaces(card)
    if interfaces and on_card:
        return not on_card.isdisjoint(interfaces)
    return shell_of(card.name) == shell_of(platform)


def pcie_devices() -> list[str]:
    """Return the PCIe addresses of AMD's FPGA cards that the system lists, such as 0000:3b:00.1."""
    found = []
    for function in sorted(PCI_DEVICES.glob("*")):
        try:
            vendor = (function / "vendor").read_text().strip()
        except OSError:
            continue
        if vendor == XILINX:
            found.append(function.name)
    return found


def why_unlisted() -> str | None:
    """Return why the emulated card is taken though the system lists a PCIe card: PYNQ does not; None if it does."""
    addresses = pcie_devices()
    if not addresses or any(not isinstance(card, EmulatedU50) for card in pynq.Device.devices):
        return None
    version = pynq_version()
    if VARIABLE not in os.environ:
        way_out = "source /opt/xilinx/xrt/setup.sh, and start again"
    elif PyxrtCard.why_none:
        way_out = f"pyxrt lists none, either: {PyxrtCard.why_none}"
    else:
        way_out = "bttlab bringup looks for the cause"
    if version != LAST_PYNQ:
        way_out += f"; or take PYNQ {LAST_PYNQ}, the last that drives Alveo cards: pip install 'pynq=={LAST_PYNQ}'"
    return f"the system lists the PCIe card {', '.join(addresses)}, but PYNQ {version} lists none; {way_out}"
