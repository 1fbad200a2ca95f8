"""A real card through `pyxrt`, the Python binding of XRT, where PYNQ's own device for Alveo cards lists none.

The calls are those of XRT's documentation (xilinx.github.io/XRT, "XRT Python Bindings") and of its source,
src/python/pybind11, in the releases 2.13 to 2.21. No real card has been tried with it.
"""

import ctypes
import itertools
import json
import logging
import time
from collections.abc import Sequence
from typing import Any, ClassVar

import pynq
from pynq.pl_server.xclbin_parser import XclBin
from pynq.pmbus import XrtRail, get_xrt_sysfs_rails

from bttlab.card.device import OverlayDevice
from bttlab.card.kernel import OverlayError
from bttlab.card.kernel_call import CallHandle, CallSignature, scalar_bits
from bttlab.card.telemetry import DeviceInfo, reported_3v3_milliamperes, reported_info
from bttlab.card.xrt import load_pyxrt, pyxrt_reason
from bttlab.util.errors import BttlabError

logger = logging.getLogger("bttlab.card")
MOST_CARDS = 16
WAIT_MILLISECONDS = 1  # of one call of XRT, which keeps the interpreter's lock
PAUSE_SECONDS = 1e-3  # between two of them, for other threads


class PyxrtCard(OverlayDevice):
    """An Alveo card that `pyxrt` opens.

    Its registers cannot be read or written, since pyxrt has no call for it: kernels are started by `start_kernel`.

    Parameters
    ----------
    index : int
        Of the card in XRT.

    Raises
    ------
    RuntimeError
        If XRT has no card of that number, or cannot open it.
    """

    _probe_priority_ = 250  # XrtDevice has 200, the emulated card 300
    why_none: ClassVar[str | None] = None  # why the last probe found no card, though it was to look for some

    @classmethod
    def _probe_(cls) -> list["PyxrtCard"]:
        cls.why_none = None
        cards: list[PyxrtCard] = []
        if pyxrt_reason() is None:
            return cards
        try:
            load_pyxrt()
            for index in range(MOST_CARDS):
                cards.append(cls(index))
        except (BttlabError, RuntimeError) as error:  # the number of cards is not in pyxrt before XRT 2.17
            cls.why_none = None if cards else str(error)
        return cards

    def __init__(self, index: int) -> None:
        super().__init__(f"pyxrt{index}")
        self._pyxrt = load_pyxrt()
        self._card = self._pyxrt.device(index)
        self.capabilities = {"REGISTER_RW": True, "CALLABLE": True}
        self.name = self._xrt_info("name")
        self.bdf = self._xrt_info("bdf")
        self.memory = PyxrtMemory(self)
        self._forget()

    def __repr__(self) -> str:
        return f"<PyxrtCard {self.name} {self.bdf}>"

    @property
    def interfaces(self) -> frozenset[str]:
        """UUIDs of the shell's interface, in 32 hexadecimal digits; empty if XRT names none or several."""
        try:
            uuid = self._xrt_info("interface_uuid").replace("-", "").lower()
        except RuntimeError:
            return frozenset()
        return frozenset([uuid]) if uuid.strip("0") else frozenset()

    # --- overlays

    def get_bitfile_metadata(self, bitfile_name: str) -> XclBin:
        return XclBin(bitfile_name)

    def download(self, bitstream: pynq.Bitstream, parser: XclBin | None = None) -> None:
        """Load an overlay; RuntimeError if XRT refuses it."""
        self._kernels.clear()  # XRT loads none while a kernel of another is open
        try:
            self._uuid = self._card.load_xclbin(self._pyxrt.xclbin(bitstream.bitfile_name))
        except RuntimeError:
            self._restore()
            raise
        self._describe(bitstream, parser or self.get_bitfile_metadata(bitstream.bitfile_name))

    def free_bitstream(self) -> None:
        """Close the kernels. The overlay stays on the card, where another program may then replace it."""
        self._kernels.clear()

    def open_context(self, description: dict[str, Any], shared: bool = True) -> int:
        """Open a kernel's compute unit, and return its index; RuntimeError if the overlay is not on the card."""
        name = description["fullpath"]
        if name not in self._kernels:
            kernel, _, unit = description["cu_name"].partition(":")
            modes = self._pyxrt.kernel.cu_access_mode
            mode = modes.shared if shared else modes.exclusive
            self._kernels[name] = self._pyxrt.kernel(self._card, self._uuid, f"{kernel}:{{{unit}}}", mode)
        return description["cu_index"]

    # --- buffers

    def flush(self, bo: int, offset: int, ptr: int, size: int) -> None:
        buffer = self.memory.buffer(bo, offset, size)
        buffer.write((ctypes.c_ubyte * size).from_address(ptr), offset)
        buffer.sync(self._pyxrt.xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE, size, offset)

    def invalidate(self, bo: int, offset: int, ptr: int, size: int) -> None:
        buffer = self.memory.buffer(bo, offset, size)
        buffer.sync(self._pyxrt.xclBOSyncDirection.XCL_BO_SYNC_BO_FROM_DEVICE, size, offset)
        data = buffer.read(size, offset)  # a copy, which has to live as long as its address is in use
        ctypes.memmove(ptr, data.ctypes.data, size)

    # --- kernels

    def start_kernel(self, name: str, signature: CallSignature, values: Sequence[Any]) -> "PyxrtCall":
        """Start a kernel; OverlayError if a buffer is not in the bank that its argument is connected to.

        Scalars are passed as their 32 bits: a call of pyxrt takes integers, and leaves out a float without an error.
        XRT would use a copy of a buffer in a wrong bank, with a warning, and the results would be in the copy.
        """
        if name not in self._kernels:
            raise OverlayError(f"{name} is not open on {self.name}: load its overlay again")
        run = self._pyxrt.run(self._kernels[name])
        pairs = zip(signature.arguments, signature.checked(values), strict=True)
        for index, (argument, value) in enumerate(pairs):
            if argument.is_pointer:
                run.set_arg(index, self.memory.argument(argument.name, argument.mem, value))
            else:
                run.set_arg(index, scalar_bits(argument, value))
        run.start()
        return PyxrtCall(run, self._pyxrt.ert_cmd_state)

    def read_registers(self, address: int, length: int) -> bytes:
        raise OverlayError(f"registers of {self.name} cannot be read: pyxrt has no call for it; use start_kernel")

    def write_registers(self, address: int, data: bytes) -> None:
        raise OverlayError(f"registers of {self.name} cannot be written: pyxrt has no call for it; use start_kernel")

    # --- clocks and sensors

    @property
    def clocks(self) -> dict[str, dict[str, int]]:
        """The overlay's clocks in MHz, in their order in the card."""
        listed = self._report("platform").get("platforms", [{}])[0].get("clocks", ())
        return {f"clock{number}": {"frequency": int(clock["freq_mhz"])} for number, clock in enumerate(listed)}

    @property
    def device_info(self) -> DeviceInfo:
        """The card's sensors, under the names of XRT's structure, as PYNQ's XrtDevice has them."""
        return reported_info(self._report("electrical"), self._report("thermal"))

    @property
    def slot_3v3_milliamperes(self) -> int:
        """Current of the slot's 3.3 V."""
        return reported_3v3_milliamperes(self._report("electrical"))

    @property
    def sensors(self) -> dict[str, XrtRail]:
        """PYNQ's power rails of the card."""
        return get_xrt_sysfs_rails(self)

    # --- helpers

    def _xrt_info(self, name: str) -> str:
        return self._card.get_info(getattr(self._pyxrt.xrt_info_device, name))

    def _report(self, name: str) -> dict[str, Any]:
        text = self._xrt_info(name)
        try:
            report = json.loads(text)
        except ValueError:
            report = None
        if not isinstance(report, dict):
            raise OverlayError(f"XRT's report {name!r} of {self.name} is not a JSON object: {text[:80]!r}")
        return report

    def _forget(self) -> None:
        super()._forget()
        self._kernels: dict[str, Any] = {}
        self._uuid: Any = None


class PyxrtCall(CallHandle):
    """A kernel that XRT's scheduler runs."""

    def __init__(self, run: Any, states: Any) -> None:
        self._run, self._states = run, states
        self._state: Any = None

    def ended(self, milliseconds: int) -> bool:
        end = time.monotonic() + milliseconds / 1e3
        while self._state is None:
            state = self._run.wait(WAIT_MILLISECONDS)  # 0 would wait without a limit
            if state != self._states.ERT_CMD_STATE_TIMEOUT:
                self._state = state
            elif time.monotonic() >= end:
                return False
            else:
                time.sleep(PAUSE_SECONDS)
        return True

    def failure(self) -> str | None:
        return None if self._state == self._states.ERT_CMD_STATE_COMPLETED else f"state {self._state}"


class PyxrtMemory:
    """The buffers of a card, which its memory banks allocate."""

    def __init__(self, card: PyxrtCard) -> None:
        self._card = card
        self._handles = itertools.count(1)
        self._buffers: dict[int, tuple[Any, int]] = {}  # handle -> pyxrt.bo, bank

    def allocate(self, bank: int, size: int) -> tuple[int, int]:
        """Allocate `size` bytes in a bank; return their handle and device address.

        Raises BttlabError for no bytes, and RuntimeError if XRT has no room for them.
        """
        if size < 1:
            raise BttlabError(f"a buffer of {size} bytes: it needs at least one")
        pyxrt = self._card._pyxrt
        buffer = pyxrt.bo(self._card._card, size, pyxrt.bo.flags.normal, bank)
        handle = next(self._handles)
        self._buffers[handle] = buffer, bank
        return handle, buffer.address()

    def release(self, handle: int) -> None:
        """Release a buffer's memory on the card."""
        self._buffers.pop(handle, None)

    def usage(self, bank: int) -> tuple[int, int]:
        """Return the bytes of this process's buffers in a bank, and their number."""
        sizes = [buffer.size() for buffer, its_bank in tuple(self._buffers.values()) if its_bank == bank]
        return sum(sizes), len(sizes)

    def buffer(self, handle: int, offset: int, size: int) -> Any:
        """Return the buffer that has `size` bytes from an offset on; BttlabError if it was freed or has not."""
        if handle not in self._buffers:
            raise BttlabError("the buffer was freed; allocate a new one")
        buffer = self._buffers[handle][0]
        if offset < 0 or size < 0 or offset + size > buffer.size():
            raise BttlabError(
                "the array is not in device memory (results of arithmetic never are); copy it into a buffer: "
                "buffer[:] = …"
            )
        return buffer

    def argument(self, name: str, mem: str | None, array: Any) -> Any:
        """Return what is passed for a pointer; OverlayError unless it is a buffer of this card in the bank `mem`."""
        if getattr(array, "device", None) is not self._card:
            raise OverlayError(f"argument {name} is in no buffer of {self._card.name}; allocate one on this card")
        buffer = self.buffer(array.bo, array.offset, array.nbytes)
        bank = self._buffers[array.bo][1]
        tags = {each["idx"]: each["tag"] for each in self._card.mem_dict.values()}
        if mem is not None and tags.get(bank) != mem:
            raise OverlayError(
                f"argument {name} is in {tags.get(bank, f'bank {bank}')}, but its port is connected to {mem}; allocate "
                "the buffer there"
            )
        return self._card._pyxrt.bo(buffer, array.nbytes, array.offset) if array.offset else buffer
