"""A fake of XRT's Python binding: what `bttlab.card.pyxrt_card` calls of it, around the emulated card's kernels.

Names, numbers of arguments and errors are those of XRT 2.13 to 2.21 (src/python/pybind11/src/pyxrt.cpp and what it
calls). Arguments are positional, and have the types that pybind11 accepts there. Environment:

FAKE_XRT_FAULT      NAME or NAME:N, from the N-th start on: hang, abort, slow (1.2 s), lost, wrong (a bit of what STORE
                    gives); load: no overlay is taken; name: the kernel has another name
FAKE_XRT_INTERRUPT  NAME:N: SIGINT at the end of the N-th call of that name from then on
"""

import ctypes
import enum
import json
import os
import signal
import threading
import time
import uuid as UUIDs
from collections import Counter

import numpy as np
from pynq._3rdparty import xclbin as axlf

from bttlab.card.compute_unit import ComputeUnit
from bttlab.card.hbm import CardMemory
from bttlab.card.image import choose_image
from bttlab.card.xclbin import SW_EMU, read_xclbin
from bttlab.estimate.facts import U50
from bttlab.util.errors import BttlabError

NAME, BDF = "xilinx_u50_gen3x16_xdma_base_5", "0000:3b:00.1"
INTERFACE = "862c7020-a250-293e-3203-6f19956669e5"
STORE = 2  # a command of isa.h
UUID = slice(416, 432)  # of an .xclbin
SLOW_SECONDS = 1.2
_calls: Counter = Counter()
_setting = ""  # that calls are counted for


class xclBOSyncDirection(enum.Enum):
    XCL_BO_SYNC_BO_TO_DEVICE = 0
    XCL_BO_SYNC_BO_FROM_DEVICE = 1


class ert_cmd_state(enum.Enum):
    ERT_CMD_STATE_NEW = 1
    ERT_CMD_STATE_QUEUED = 2
    ERT_CMD_STATE_COMPLETED = 4
    ERT_CMD_STATE_ERROR = 5
    ERT_CMD_STATE_ABORT = 6
    ERT_CMD_STATE_TIMEOUT = 8


class xrt_info_device(enum.Enum):
    bdf = 0
    interface_uuid = 1
    name = 5
    electrical = 8
    thermal = 9
    platform = 12


def _called(name: str) -> None:
    """Count a call, and raise SIGINT if the setting says so: as of C++, at its end."""
    global _setting
    wanted = os.environ.get("FAKE_XRT_INTERRUPT", "")
    if wanted != _setting:
        _calls.clear()
        _setting = wanted
    _calls[name] += 1
    if wanted == f"{name}:{_calls[name]}":
        signal.raise_signal(signal.SIGINT)


class _Card:
    """The state of a card, which all who open it share."""

    def __init__(self) -> None:
        self.memory = CardMemory()
        self.uuid = b""
        self.units: dict[str, ComputeUnit] = {}
        self.clock = 300
        self.open_kernels = 0
        self.started = 0
        self.hangs = False

    def has_fault(self, name: str) -> bool:
        fault, _, number = os.environ.get("FAKE_XRT_FAULT", "").partition(":")
        return fault == name and (not number or self.started >= int(number))

    def check(self, what: str) -> None:
        if self.has_fault("lost"):
            raise RuntimeError(f"{what}: No such device")

    @property
    def running(self) -> bool:
        return self.hangs or any(unit.running for unit in self.units.values())


_cards: dict[int, _Card] = {}


class uuid:
    def __init__(self, data: bytes, /) -> None:
        self._data = data

    def to_string(self, /) -> str:
        return str(UUIDs.UUID(bytes=self._data))


class xclbin:
    def __init__(self, path: str, /) -> None:
        try:
            with open(path, "rb") as file:
                self._data = file.read()
        except OSError:
            raise RuntimeError(f"Failed to open '{path}' for reading: No such file or directory") from None
        if self._data[:7] != b"xclbin2":
            raise RuntimeError("bad axlf file")

    def get_uuid(self, /) -> uuid:
        return uuid(self._data[UUID])

    def get_xsa_name(self, /) -> str:
        return self._data[352:416].split(b"\0")[0].decode()


class device:
    def __init__(self, index: int, /) -> None:
        if index >= int(os.environ.get("FAKE_XRT_CARDS", "1")):
            raise RuntimeError(f"Could not open device with index '{index}'")
        self._card = _cards.setdefault(index, _Card())
        _called("device")

    def get_info(self, key: xrt_info_device, /) -> str:
        self._card.check("get_info")
        amps = "1.500" if not self._card.running else "2.000"
        rails = [("12v_pex", "12.100", amps), ("12v_aux", "0.000", "0.000"), ("3v3_pex", "3.300", "0.200")]
        rails.append(("vccint", "0.850", "9.000"))
        volts = [("1v8_top", "1.800"), ("0v9_vcc", "0.903"), ("mgt_vtt", "1.204"), ("5v5_system", "4.987")]
        power = [
            {"id": id, "voltage": {"volts": v, "is_present": "true"}, "current": {"amps": a, "is_present": "true"}}
            for id, v, a in [*rails, *((id, v, "0.000") for id, v in volts)]
        ]
        clocks = [{"id": "DATA_CLK", "description": "Data", "freq_mhz": str(self._card.clock)}]
        answer = {
            xrt_info_device.bdf: BDF,
            xrt_info_device.interface_uuid: INTERFACE,
            xrt_info_device.name: os.environ.get("FAKE_XRT_SHELL", NAME),
            xrt_info_device.electrical: json.dumps({"power_rails": power, "power_consumption_watts": "18.810000"}),
            xrt_info_device.thermal: json.dumps({"thermals": [{"location_id": "fpga0", "temp_C": "55"}]}),
            xrt_info_device.platform: json.dumps({"platforms": [{"clocks": clocks}]}),
        }[key]
        _called("get_info")
        return answer

    def load_xclbin(self, file: xclbin, /) -> uuid:
        card = self._card
        card.check("failed to load xclbin")
        if card.running or card.open_kernels:
            raise RuntimeError("failed to load xclbin: Device or resource busy")
        if card.has_fault("load"):
            raise RuntimeError("failed to load xclbin: Operation not supported")
        data = bytearray(file._data)
        if bytes(data[UUID]) != card.uuid:
            top = axlf.axlf.from_buffer_copy(data)
            top.m_header.m_mode = SW_EMU
            overlay = read_xclbin(bytes(top) + data[ctypes.sizeof(top) :])
            code = overlay.images[choose_image(overlay.images.keys())]
            card.units = {each.name: ComputeUnit(each, code, card.memory, "fake card") for each in overlay.kernels}
            card.uuid, card.clock = bytes(data[UUID]), 200
        _called("load_xclbin")
        return file.get_uuid()

    def get_xclbin_uuid(self, /) -> uuid:
        return uuid(self._card.uuid)


class kernel:
    class cu_access_mode(enum.Enum):
        exclusive = 0
        shared = 1
        none = 2

    def __init__(self, card: device, of: uuid, name: str, mode: cu_access_mode, /) -> None:
        self._card, self._is_open = card._card, False
        if of._data != self._card.uuid:
            raise RuntimeError("failed to open ip context: Invalid argument")
        base, _, unit = name.partition(":")
        if base not in self._card.units or self._card.has_fault("name"):
            raise RuntimeError(f"No such kernel '{base}'")
        if unit not in ("", f"{{{base}_1}}"):
            raise RuntimeError(f"No compute units matching '{name}'")
        self._unit = self._card.units[base]
        self._card.open_kernels += 1
        self._is_open = True
        _called("kernel")

    def __del__(self) -> None:
        if self._is_open:
            self._card.open_kernels -= 1

    def group_id(self, index: int, /) -> int:
        bank = self._unit.kernel.arguments[index].bank
        return 65535 if bank is None else bank


class bo:
    class flags(enum.Enum):
        normal = 0
        cacheable = 1 << 24

    def __init__(self, *arguments) -> None:
        if isinstance(arguments[0], bo):
            self._whole, size, self._offset = arguments
            self._handle, self._card = self._whole._handle, self._whole._card
            if self._offset + size > self._whole.size():
                raise RuntimeError("sub-buffer size and offset: Invalid argument")
            self._size, self._bank = size, self._whole._bank
            return
        card, size, _, self._bank = arguments
        self._whole, self._offset, self._size, self._card = None, 0, size, card._card
        if self._bank >= U50.hbm_banks:
            raise RuntimeError("failed to allocate bo: Invalid argument")
        self._host = np.zeros(size, np.uint8)
        try:
            self._handle, self._begin = self._card.memory.allocate(self._bank, size)
        except BttlabError:
            raise RuntimeError("failed to allocate bo: Cannot allocate memory") from None
        _called("bo")

    def __del__(self) -> None:
        if getattr(self, "_whole", True) is None and hasattr(self, "_begin") and not self._card.hangs:
            self._card.memory.release(self._handle)

    def size(self, /) -> int:
        return self._size

    def address(self, /) -> int:
        return self._begin if self._whole is None else self._whole.address() + self._offset

    def write(self, data, seek: int, /) -> None:
        view = np.frombuffer(data, np.uint8)
        if seek + len(view) > self._size:
            raise RuntimeError("attempting to write past buffer size: Invalid argument")
        self._bytes(seek, len(view))[:] = view

    def read(self, size: int, skip: int, /) -> np.ndarray:
        if skip + size > self._size:
            raise RuntimeError("attempting to read past buffer size: Invalid argument")
        return self._bytes(skip, size).view(np.int8).copy()

    def sync(self, direction: xclBOSyncDirection, size: int, offset: int, /) -> None:
        self._card.check("failed to sync bo")
        whole, at = (self, offset) if self._whole is None else (self._whole, self._offset + offset)
        host = whole._host.ctypes.data + at
        place = self._card.memory.span(whole._handle, at, size)
        to_device = direction is xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE
        ctypes.memmove(*((place, host) if to_device else (host, place)), size)
        _called("sync")

    def map(self, /) -> memoryview:
        return memoryview(self._bytes(0, self._size))

    def _bytes(self, offset: int, size: int) -> np.ndarray:
        whole, at = (self, offset) if self._whole is None else (self._whole, self._offset + offset)
        return whole._host[at : at + size]

    def _in_bank(self, bank: int) -> "bo":
        """As XRT does with a warning: a buffer in another bank is passed as a copy, which nobody reads again."""
        copy = bo.__new__(bo)
        copy._whole, copy._offset, copy._size, copy._card, copy._bank = None, 0, self._size, self._card, bank
        copy._host = np.zeros(self._size, np.uint8)
        copy._handle, copy._begin = self._card.memory.allocate(bank, self._size)
        whole = self if self._whole is None else self._whole
        source = self._card.memory.span(whole._handle, self._offset, self._size)
        ctypes.memmove(self._card.memory.span(copy._handle, 0, self._size), source, self._size)
        return copy


class run:
    def __init__(self, of: kernel, /) -> None:
        self._kernel, self._unit, self._card = of, of._unit, of._card
        self._buffers: dict[int, bo] = {}
        self._numbers: dict[int, int] = {}
        self._state = ert_cmd_state.ERT_CMD_STATE_NEW

    def set_arg(self, index: int, item, /) -> None:
        argument = self._unit.kernel.arguments[index]
        if isinstance(item, bo):
            self._buffers[index] = item if item._bank == argument.bank else item._in_bank(argument.bank)
            data = self._buffers[index].address().to_bytes(8, "little")
        elif type(item) is int and -(1 << 31) <= item < 1 << 31:
            self._numbers[index] = item
            data = item.to_bytes(4, "little", signed=True)
        else:
            raise TypeError("set_arg(): incompatible function arguments")
        self._unit.write(self._unit.kernel.offsets[index], data)

    def start(self, /) -> None:
        self._card.check("failed to launch execution buffer")
        self._card.started += 1
        self._card.check("failed to launch execution buffer")
        self._state = ert_cmd_state.ERT_CMD_STATE_QUEUED
        if self._card.has_fault("hang"):
            self._card.hangs = True
        elif self._card.has_fault("abort"):
            self._state = ert_cmd_state.ERT_CMD_STATE_ABORT
        elif self._card.has_fault("slow"):
            self._slow = threading.Timer(SLOW_SECONDS, self._unit.write, (0, b"\1\0\0\0"))
            self._slow.start()
        else:
            self._unit.write(0, b"\1\0\0\0")
        _called("start")

    def state(self, /) -> ert_cmd_state:
        slow = getattr(self, "_slow", None)
        runs = self._card.running or (slow is not None and not slow.finished.is_set())
        if self._state is ert_cmd_state.ERT_CMD_STATE_QUEUED and not runs:
            self._state = ert_cmd_state.ERT_CMD_STATE_COMPLETED
            if self._card.has_fault("wrong") and self._numbers.get(0) == STORE:
                buffer = self._buffers[8]
                address = self._card.memory.span(buffer._handle, 0, 1)
                ctypes.c_ubyte.from_address(address).value ^= 1
        return self._state

    def wait(self, milliseconds: int = 0, /) -> ert_cmd_state:
        end = time.monotonic() + milliseconds / 1e3
        while (state := self.state()) is ert_cmd_state.ERT_CMD_STATE_QUEUED:
            if milliseconds and time.monotonic() >= end:
                _called("wait")
                return ert_cmd_state.ERT_CMD_STATE_TIMEOUT
            time.sleep(1e-4)
        _called("wait")
        return state
