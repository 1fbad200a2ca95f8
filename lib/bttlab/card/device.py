"""What the emulated card and a card on pyxrt have in common: the description of an overlay, and its memory banks."""

from collections.abc import Mapping
from typing import Any

import pynq

from bttlab.card.hbm import HbmBank
from bttlab.util.errors import BttlabError


class OverlayDevice(pynq.Device):
    """A PYNQ device of ours with one overlay at a time. Its description is that of the overlay that is loaded."""

    name: str
    memory: Any  # allocates, releases and accounts for buffers: `CardMemory`

    def set_bitfile_name(self, bitfile_name: str) -> None:
        """Set the card's description from an overlay, which PYNQ does before it loads one."""
        try:
            super().set_bitfile_name(bitfile_name)
        except BttlabError:
            self._restore()
            raise

    @property
    def default_memory(self) -> HbmBank:
        """The only memory bank that the overlay uses; BttlabError if there is not exactly one."""
        used = [bank for bank in self.mem_dict.values() if bank["used"]]
        if not used:
            raise BttlabError(f"{self.name} has no overlay, so no memory bank is in use; load one first")
        if len(used) > 1:
            tags = ", ".join(bank["tag"] for bank in used)
            raise BttlabError(
                f"the overlay uses the banks {tags}: choose one, as in pynq.allocate(…, target=overlay.HBM0)"
            )
        return self.get_memory(used[0])

    def get_memory(self, desc: Mapping[str, Any]) -> HbmBank:
        return HbmBank(self, desc)

    def get_memory_by_name(self, name: str) -> HbmBank:
        """Return the bank with a tag, such as "HBM[0]"."""
        for desc in self.mem_dict.values():
            if desc["tag"] == name:
                return self.get_memory(desc)
        raise BttlabError(f"{self.name} has no memory bank {name!r}; load an overlay first")

    def close(self) -> None:
        """Remove the overlay from the card. `Overlay.free` of PYNQ 3.0.1 calls this; that of PYNQ 4 does not."""
        self.free_bitstream()

    def free_bitstream(self) -> None:
        raise NotImplementedError

    def _describe(self, bitstream: pynq.Bitstream, parser: Any) -> None:
        """Set the description of the overlay that was loaded."""
        self.post_download(bitstream, parser)
        self._loaded = parser, self.bitfile_name

    def _forget(self) -> None:
        self._loaded: tuple[Any, str | None] | None = None
        self.parser = None
        self.bitfile_name = self.timestamp = None
        self.clear_dict()

    def _restore(self) -> None:
        """Set the description of the loaded overlay again: PYNQ sets that of a new one before it is loaded."""
        if self._loaded:
            self.parser, bitfile_name = self._loaded
            self.reset(self.parser, bitfile_name=bitfile_name)
        else:
            self._forget()


def leave_out_xrt_device() -> None:
    """Keep PYNQ 3.0.1 from its probe of Alveo cards, which fails if XRT's C library lacks the call."""
    classes = type(pynq.Device)._subclasses
    for priority in [priority for priority, each in classes.items() if each.__name__ == "XrtDevice"]:
        del classes[priority]


def register(*classes: Any) -> None:
    """Append the cards of our classes to PYNQ's devices if PYNQ listed its devices before they were imported."""
    devices = pynq.Device.__dict__.get("_devices")
    if devices is not None:
        for each in classes:
            if not any(isinstance(device, each) for device in devices):
                devices.extend(each._probe_())
