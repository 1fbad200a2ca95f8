"""The emulated card's memory: HBM banks separate from host memory, and buffers that are synchronised with them."""

import ctypes
import gc
import itertools
import math
import mmap
import operator
import threading
from bisect import insort
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from pynq.buffer import PynqBuffer

from bttlab.estimate.facts import U50
from bttlab.util.errors import BttlabError

PAGE = mmap.PAGESIZE
GUARD = 1 << 20  # bytes of the guard area after the memory: an access ends the process
PROT_NONE = 0
MAP_NORESERVE = 0x4000  # Linux; mmap.MAP_NORESERVE exists from Python 3.13 on


class CardMemory:
    """The device memory of one card, at device addresses 0 to 8 GiB, in banks of equal size.

    All of it is one mapping of which the host commits only the used pages, so every device address has a host address.
    Buffers do not share pages. Device address 0 is never allocated: it is the reset value of an argument register.
    """

    _DONT_NEED = mmap.MADV_DONTNEED  # buffers are also freed at the end of the process, when modules may be empty

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mapping: mmap.mmap | None = None
        self._base = 0
        self._handles = itertools.count(1)
        self._spans: dict[int, tuple[int, int]] = {}  # buffer handle -> begin, end
        self._banks: list[list[tuple[int, int, int]]] = [[] for _ in range(U50.hbm_banks)]  # begin, end, handle
        self._released: deque[int] = deque()

    def host_address(self, address: int) -> int:
        return self._base + address

    def allocate(self, bank: int, size: int) -> tuple[int, int]:
        """Allocate `size` bytes in a bank, all zero, and return their handle and device address.

        BttlabError if the bank has no contiguous free space of that size, or the host refuses the mapping.
        """
        if size < 1:
            raise BttlabError(f"a buffer of {size} bytes: it needs at least one")
        with self._lock:
            self._collect()
            self._map()
            length = -(-size // PAGE) * PAGE
            begin = self._gap(bank, length)
            if begin is None:  # an unreferenced driver keeps its buffers until garbage collection
                gc.collect()
                self._collect()
                begin = self._gap(bank, length)
            if begin is None:
                most = max(free for _, free in self._gaps(bank))
                raise BttlabError(
                    f"cannot allocate {size:,} bytes in HBM[{bank}]: at most {most:,} of its "
                    f"{U50.hbm_bank_bytes:,} bytes are free in one piece; free buffers or use another bank"
                )
            handle = next(self._handles)
            self._spans[handle] = begin, begin + length
            insort(self._banks[bank], (begin, begin + length, handle))
            return handle, begin

    def release(self, handle: int) -> None:
        """Release a buffer's memory. Safe in a destructor, which the garbage collector may run within `allocate`."""
        self._released.append(handle)
        if self._lock.acquire(blocking=False):
            try:
                self._collect()
            finally:
                self._lock.release()

    def usage(self, bank: int) -> tuple[int, int]:
        """Return the used bytes of a bank, in whole pages, and the number of its buffers."""
        with self._lock:
            self._collect()
            buffers = self._banks[bank]
            return sum(end - begin for begin, end, _ in buffers), len(buffers)

    def span(self, handle: int, offset: int, size: int) -> int:
        """Return the host address of `size` bytes of a buffer; BttlabError if they are not in it or it is freed."""
        begin, end = self._spans.get(handle, (0, 0))
        if begin == end:
            raise BttlabError("the buffer was freed; allocate a new one")
        if offset < 0 or size < 0 or begin + offset + size > end:
            raise BttlabError(
                "the array is not in device memory (results of arithmetic never are); copy it into a buffer: "
                "buffer[:] = …"
            )
        return self._base + begin + offset

    def bytes_to_end(self, address: int) -> int:
        """Return the bytes from a device address to the end of its buffer, which has whole pages; 0 outside buffers."""
        bank = address // U50.hbm_bank_bytes
        buffers = tuple(self._banks[bank]) if 0 <= bank < U50.hbm_banks else ()
        return next((end - address for begin, end, _ in buffers if begin <= address < end), 0)

    def _map(self) -> None:
        if self._mapping is not None:
            return
        size = U50.hbm_bytes + GUARD
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        try:
            mapping = mmap.mmap(-1, size, flags=flags)
        except (OSError, ValueError) as error:
            raise BttlabError(
                f"cannot reserve {size:,} bytes of addresses for the card's memory ({error}); "
                "raise the limit of ulimit -v, or set vm.overcommit_memory to 0 or 1"
            ) from None
        self._mapping, self._base = mapping, ctypes.addressof(ctypes.c_char.from_buffer(mapping))
        ctypes.CDLL(None).mprotect(ctypes.c_void_p(self._base + U50.hbm_bytes), ctypes.c_size_t(GUARD), PROT_NONE)

    def _gaps(self, bank: int) -> list[tuple[int, int]]:
        """Return the address and the bytes of each gap; the card's first page is never used: no address is 0."""
        ends = [max(bank * U50.hbm_bank_bytes, PAGE), *(end for _, end, _ in self._banks[bank])]
        begins = [*(begin for begin, _, _ in self._banks[bank]), (bank + 1) * U50.hbm_bank_bytes]
        return [(end, begin - end) for begin, end in zip(begins, ends, strict=True)]

    def _gap(self, bank: int, length: int) -> int | None:
        """Return the address of the first gap of at least `length` bytes; None if there is none."""
        return next((address for address, size in self._gaps(bank) if size >= length), None)

    def _collect(self) -> None:
        """Free released buffers and return their pages to the host."""
        while self._released:
            handle = self._released.popleft()
            begin, end = self._spans.pop(handle)
            assert self._mapping is not None  # there was a buffer
            self._banks[begin // U50.hbm_bank_bytes].remove((begin, end, handle))
            self._mapping.madvise(self._DONT_NEED, begin, end - begin)


class HbmBank:
    """A bank of the card's memory: what PYNQ's `overlay.HBM0` and `Device.get_memory` return.

    Banks with the same index on the same card are equal.
    """

    def __init__(self, device: Any, desc: Mapping[str, Any]) -> None:
        self.idx = desc["idx"]
        self.size = desc["size"]
        self.base_address = desc["base_address"]
        self.desc = desc
        self.device = device

    def allocate(self, shape: int | tuple[int, ...], dtype: Any = "u4", cacheable: int = 0) -> "CardBuffer":
        """Allocate a buffer in this bank: a host array of zeros and as many bytes on the card.

        `cacheable` has no effect, as on a real card. Errors are those of `CardMemory.allocate`.
        """
        del cacheable
        dtype = np.dtype(dtype)
        extents: Any = (shape,) if np.ndim(shape) == 0 else shape
        size = math.prod(map(operator.index, extents)) * dtype.itemsize
        handle, address = self.device.memory.allocate(self.idx, size)
        host = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # on a page boundary, as in XRT
        return CardBuffer(
            shape, dtype, buffer=host, device=self.device, device_address=address, bo=handle, coherent=False
        )

    @property
    def mem_used(self) -> int:
        return self.device.memory.usage(self.idx)[0]

    @property
    def num_buffers(self) -> int:
        return self.device.memory.usage(self.idx)[1]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HbmBank) and self.device is other.device and self.idx == other.idx

    def __hash__(self) -> int:
        return hash((id(self.device), self.idx))


class CardBuffer(PynqBuffer):
    """A host array with its counterpart in the emulated card's memory.

    It has no `memory` attribute: PYNQ would pass a buffer with that attribute to XRT when it is freed.
    """

    @property
    def device(self) -> Any:
        """The card. PYNQ sets an attribute of this name, which arrays of NumPy 2 have already, read-only."""
        try:
            return self.__dict__["_card"]
        except KeyError:
            raise AttributeError("the array is in no card's memory") from None

    @device.setter
    def device(self, card: Any) -> None:
        self.__dict__["_card"] = card

    def freebuffer(self) -> None:
        """Release the card's memory; the host array stays valid. Does nothing for a view."""
        if not self.__dict__.get("freed", True):
            self.freed = True
            self.device.memory.release(self.bo)

    def flush(self) -> None:
        self._check_synchronisable()
        super().flush()

    def invalidate(self) -> None:
        self._check_synchronisable()
        super().invalidate()

    def _check_synchronisable(self) -> None:
        if not hasattr(self, "device"):  # NumPy's pickles hold the values alone
            raise BttlabError(
                "the array is a pickled copy of a buffer and has no device memory; allocate a buffer and copy it: "
                "buffer[:] = …"
            )
        if not self.flags.forc:
            raise BttlabError(f"a view with strides {self.strides} cannot be synchronised; synchronise the buffer")
