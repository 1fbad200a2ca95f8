"""Match overlays with cards as XRT does: by the UUID of the shell's interface, otherwise by the platform's name."""

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any, TypeAlias

from bttlab.card.emulation import EmulatedU50

Card: TypeAlias = Any  # a pynq.Device, whose class does not declare the attributes of cards
PCI_DEVICES = Path("/sys/bus/pci/devices")
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
    slot = getattr(getattr(card, "_info", None), "mPciSlot", 0)
    return f"{slot >> 16:04x}:{slot >> 8 & 0xFF:02x}:{slot >> 3 & 0x1F:02x}.{slot & 7}" if slot else None


def card_interfaces(card: Card) -> frozenset[str]:
    """Return the UUIDs of a card's shell interfaces that XRT's drivers list; empty if they list none."""
    address, found = pcie_address(card), set()
    for function in PCI_DEVICES.glob(f"{address[:-1]}*") if address else ():
        try:
            found.update(_UUID.findall((function / "interface_uuids").read_bytes().lower()))
        except OSError:
            continue
    return frozenset(uuid.decode() for uuid in found)


def suits(card: Card, platform: str, interfaces: Collection[str] = ()) -> bool:
    if isinstance(card, EmulatedU50):
        return card.platform == platform
    on_card = card_interfaces(card)
    if interfaces and on_card:
        return not on_card.isdisjoint(interfaces)
    return shell_of(card.name) == shell_of(platform)
