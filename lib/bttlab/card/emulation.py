"""The emulated U50: a PYNQ device whose kernels run on the host's processor.

It behaves like a real card: its memory is separate from the host's, kernels start by their AP_CTRL register and run
concurrently with Python, and one overlay is loaded at a time. What would hang or silently fail on a card, such as an
address outside all buffers, is an error here.
"""

import ctypes
import itertools
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pynq
from pynq.pl_server.xclbin_parser import XclBin
from pynq.pmbus import XrtRail

from bttlab.card.compute_unit import ComputeUnit
from bttlab.card.device import OverlayDevice
from bttlab.card.hbm import CardMemory
from bttlab.card.image import choose_image
from bttlab.card.kernel import CONTROL_RANGE, OverlayError
from bttlab.card.manifest import MANIFEST, digest, overlays_folder, read_file, read_manifest
from bttlab.card.telemetry import DeviceInfo, modelled_3v3_milliamperes, modelled_info, modelled_rails
from bttlab.card.xclbin import EmulationOverlay, control_address, read_xclbin
from bttlab.estimate.card import power_levels
from bttlab.estimate.facts import U50
from bttlab.estimate.power import PowerLevels
from bttlab.estimate.traffic import Traffic
from bttlab.util.errors import BttlabError
from bttlab.util.processes import usable_processors
from bttlab.util.trust import changeable_by_others

logger = logging.getLogger("bttlab.card")
MOST_CARDS = 16
_DIGEST = re.compile(r"[0-9a-f]{64}")


class _Description(XclBin):
    """PYNQ's description of an overlay, with the overlay."""

    overlay: EmulationOverlay


class EmulatedU50(OverlayDevice):
    """An emulated U50, which PYNQ lists after the real cards. Every instance is a separate card."""

    _probe_priority_ = 300  # XrtDevice has 200, PyxrtCard 250
    provenance = "modelled"  # of the sensors' readings
    # returns why the emulated card is taken though the system lists a PCIe card; the package sets it
    why_unlisted: ClassVar[Any] = staticmethod(lambda: None)
    _trusted: ClassVar[set[str]] = set()
    _indices: ClassVar[itertools.count] = itertools.count()

    @classmethod
    def _probe_(cls) -> list["EmulatedU50"]:
        value = os.environ.get("BTTLAB_EMULATED_CARDS", "1")
        if not value.isdecimal() or int(value) > MOST_CARDS:
            raise BttlabError(f"BTTLAB_EMULATED_CARDS is {value!r}: it must be a number from 0 to {MOST_CARDS}")
        return [cls() for _ in range(int(value))]

    def __init__(self) -> None:
        index = next(self._indices)
        super().__init__(f"emulated{index}")
        self.capabilities = {"REGISTER_RW": True, "CALLABLE": True}
        self.name = f"emulated_u50_{index}"
        self.platform = U50.platform
        self.memory = CardMemory()
        self._sent = self._fetched = 0  # bytes of buffers, to HBM and back
        self._caller = threading.local()
        self._threads = min(2, usable_processors())
        self._forget()

    @property
    def threads(self) -> int:
        """Host threads that execute a kernel, 1 or 2 (by default, if the process may use two processors).

        Results do not depend on it.
        """
        return self._threads

    @threads.setter
    def threads(self, count: int) -> None:
        if count not in (1, 2):
            raise BttlabError(f"threads={count!r}: a kernel is executed by 1 or 2 host threads")
        self._threads = count
        for unit in self._units.values():
            unit.threads = count

    def __repr__(self) -> str:
        return f"<EmulatedU50 {self.name}>"

    @classmethod
    def trust(cls, overlay: str | Path) -> str:
        """Allow an overlay that the manifest does not list, by its .xclbin or its SHA-256; return the SHA-256.

        It contains native code, which runs with your rights.
        """
        value = str(overlay)
        sha256 = value if _DIGEST.fullmatch(value) else digest(read_file(overlay))
        cls._trusted.add(sha256)
        return sha256

    # --- overlays

    def get_bitfile_metadata(self, bitfile_name: str) -> _Description:
        """Return PYNQ's description of an overlay; OverlayError unless it is trusted and an emulation overlay."""
        data = read_file(bitfile_name)
        self.check_trusted(Path(bitfile_name), digest(data))
        try:
            overlay = read_xclbin(data)
        except OverlayError as error:
            raise OverlayError(f"{bitfile_name}: {error}") from None
        parser = _Description(bitfile_name, bytearray(data))
        parser.overlay = overlay
        return parser

    def download(self, bitstream: pynq.Bitstream, parser: _Description | None = None) -> None:
        """Replace the loaded overlay.

        It stays loaded after a BttlabError, because a kernel is running, or an OverlayError: the processor cannot run
        the new one.
        """
        try:
            self._check_idle("load an overlay")
            parser = parser or self.get_bitfile_metadata(bitstream.bitfile_name)
            name = choose_image(parser.overlay.images.keys())
            code = parser.overlay.images[name]
            units = {  # an image for each: kernels share no on-chip memory
                control_address(index): ComputeUnit(kernel, code, self.memory, self.name, self.threads)
                for index, kernel in enumerate(parser.overlay.kernels)
            }
        except BttlabError:
            self._restore()
            raise
        if why := self.why_unlisted():
            logger.warning("WARNING: %s; using %s", why, self.name)
        logger.info("%s on %s, image %s", bitstream.bitfile_name, self.name, name)
        self._units, self.image = units, name
        self._levels = PowerLevels.without_overlay
        self._describe(bitstream, parser)

    def free_bitstream(self) -> None:
        self._check_idle("free the overlay")
        self._forget()

    def open_context(self, description: dict[str, Any], shared: bool = True) -> int:
        """Return a compute unit's index. `shared` has no effect: only one process uses an emulated card."""
        del shared
        return description["cu_index"]

    # --- memory

    @property
    def traffic(self) -> Traffic:
        """Bytes counted so far: of buffers that were synchronised, and of calls of the loaded overlay's kernels."""
        moved = [unit.moved for unit in self._units.values()]
        return Traffic(self._sent, self._fetched, *(sum(each[n] for each in moved) for n in range(2)))

    def flush(self, bo: int, offset: int, ptr: int, size: int) -> None:
        self._sent += size
        ctypes.memmove(self.memory.span(bo, offset, size), ptr, size)

    def invalidate(self, bo: int, offset: int, ptr: int, size: int) -> None:
        self._fetched += size
        ctypes.memmove(ptr, self.memory.span(bo, offset, size), size)

    # --- registers

    def read_registers(self, address: int, length: int) -> bytes:
        unit, offset = self._unit(address, length)
        return unit.read(offset, length)

    def write_registers(self, address: int, data: bytes) -> None:
        unit, offset = self._unit(address, len(data))
        unit.write(offset, bytes(data), here=getattr(self._caller, "waits", False))

    @contextmanager
    def waited_for(self) -> Iterator[None]:
        """Run kernels on the caller's thread within this context, for a caller that waits for them at once.

        This avoids two thread switches a call: a quarter millisecond, or much more if all processors are busy.
        """
        self._caller.waits = True
        try:
            yield
        finally:
            self._caller.waits = False

    @property
    def clocks(self) -> dict[str, dict[str, int]]:
        """The clocks that the overlay would run at on the card, in MHz."""
        clocks = self._loaded[0].clock_dict if self._loaded else {}
        return {name: {"frequency": clock["frequency"]} for name, clock in clocks.items()}

    # --- sensors

    @property
    def device_info(self) -> DeviceInfo:
        return modelled_info(self._levels(), any(unit.running for unit in self._units.values()))

    @property
    def slot_3v3_milliamperes(self) -> int:
        """Current of the slot's 3.3 V, which XRT's structure lacks; modelled."""
        return modelled_3v3_milliamperes()

    @property
    def sensors(self) -> dict[str, XrtRail]:
        """PYNQ's power rails of the card. They are modelled and follow whether a kernel is running.

        Each rail and sensor has the attribute `provenance`, "modelled". Their integral is not the energy, since the
        emulation is slower than the card: `bttlab.estimate.card` has that.
        """
        return modelled_rails(self)

    # --- helpers

    def _unit(self, address: int, length: int) -> tuple[ComputeUnit, int]:
        base = address - address % CONTROL_RANGE
        if base not in self._units or address % 4 or length % 4 or address + length > base + CONTROL_RANGE:
            raise BttlabError(f"{self.name} has no registers at {address:#x}, {length} bytes; is the overlay loaded?")
        return self._units[base], address - base

    def _check_idle(self, action: str) -> None:
        for unit in self._units.values():
            if unit.running:
                raise BttlabError(f"{unit.kernel.instance} is running: wait for it before you {action}")

    @classmethod
    def check_trusted(cls, path: Path, sha256: str, content: str = "contains native code") -> None:
        """Raise OverlayError unless an overlay's file is trusted, or listed in a manifest that others cannot write."""
        if sha256 in cls._trusted | set(re.findall(r"[0-9a-f]{64}", os.environ.get("BTTLAB_TRUST", ""))):
            return
        folder = overlays_folder()
        entries = read_manifest(folder)
        forged = changeable_by_others(folder / MANIFEST)
        if any(entry.sha256 == sha256 for entry in entries) and not forged:
            return
        hint = f"if you trust its author, load it with --trust, trust=True in Python, or BTTLAB_TRUST={sha256}"
        if forged:
            raise OverlayError(f"{path} {content}, and {folder / MANIFEST} cannot be trusted: {forged[1]}; or, {hint}")
        for entry in entries:
            if (folder / entry.file).resolve() == path.resolve():
                raise OverlayError(
                    f"{path} is not the file that manifest.json lists (SHA-256 {sha256[:12]}…, listed "
                    f"{entry.sha256[:12]}…); fetch it again, or rebuild it with: make overlays; or, {hint}"
                )
        raise OverlayError(f"{path} {content} and is not listed in {folder / MANIFEST}; {hint}")

    def program_loaded(self, program: Any) -> None:
        """Set the program whose power the modelled sensors show."""
        self._levels = partial(power_levels, program)

    def _forget(self) -> None:
        super()._forget()
        self._units: dict[int, ComputeUnit] = {}
        self._levels: Callable[[], PowerLevels] = PowerLevels.without_overlay
        self.image = None
