"""Start a kernel: by its registers, by XRT's scheduler with PYNQ 3.0.1, or by the card's own `start_kernel`.

PYNQ 4 has no calls of kernels: its `DefaultIP` lacks `start`, `call` and `args`.
"""

import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pynq import DefaultIP

from bttlab.card.kernel import OverlayError

START, IDLE = 0x1, 0x4  # in AP_CTRL
FORMATS = {"int": "i", "unsigned int": "I", "float": "f"}  # of `struct`, by the type in C++
POLL_MILLISECONDS = 100


class CallHandle:
    """A started kernel."""

    def ended(self, milliseconds: int) -> bool:
        """Wait for the kernel at most this long, and return True if it has ended."""
        raise NotImplementedError

    def failure(self) -> str | None:
        """Return the error with which the kernel ended; None if there is none."""
        return None

    def wait(self) -> None:
        """Wait for the kernel without a time limit."""
        while not self.ended(POLL_MILLISECONDS):
            pass


@dataclass(frozen=True)
class CallArgument:
    """An argument of a kernel, as the overlay describes it.

    Parameters
    ----------
    name, type : str
        As in the C++ source.
    offset : int
        Of its register, in bytes.
    mem : str or None
        Tag of the memory bank that a pointer's port is connected to, such as "HBM[0]".
    """

    name: str
    type: str
    offset: int
    mem: str | None = None

    @property
    def is_pointer(self) -> bool:
        return "*" in self.type

    @property
    def end(self) -> int:
        return self.offset + (8 if self.is_pointer else 4)


class CallSignature:
    """The arguments of a kernel in the function's order, from PYNQ's description of its registers."""

    def __init__(self, registers: Mapping[str, Mapping[str, Any]]) -> None:
        self.arguments = tuple(
            CallArgument(name, entry["type"], entry["address_offset"], entry.get("memory") or None)
            for name, entry in sorted(registers.items(), key=lambda item: item[1]["address_offset"])
            if name != "CTRL"
        )
        unknown = [each for each in self.arguments if not each.is_pointer and each.type not in FORMATS]
        if unknown:
            raise OverlayError(
                f"argument {unknown[0].name} has the type {unknown[0].type!r}: a call has pointers and "
                f"{', '.join(FORMATS)}"
            )

    def checked(self, values: Sequence[Any]) -> Sequence[Any]:
        """Return the values.

        Raises OverlayError unless there is one for each argument, and pointers are contiguous buffers of a card: a
        kernel reads from the address on, whatever the strides are.
        """
        if len(values) != len(self.arguments):
            names = ", ".join(argument.name for argument in self.arguments)
            raise OverlayError(f"{len(values)} values for the {len(self.arguments)} arguments {names}")
        for argument, value in zip(self.arguments, values, strict=True):
            if not argument.is_pointer:
                continue
            if getattr(value, "device_address", None) is None:
                raise OverlayError(f"argument {argument.name} is in no buffer of a card; allocate one: pynq.allocate")
            if not value.flags.forc:
                raise OverlayError(
                    f"argument {argument.name} is a view with strides {value.strides}; a kernel takes contiguous "
                    "arrays: pass the buffer"
                )
        return values

    def pack(self, values: Sequence[Any]) -> bytes:
        """Return the registers' bytes from offset 0 on, with a control register that does not start the kernel."""
        packed = bytearray(max((argument.end for argument in self.arguments), default=4))
        for argument, value in zip(self.arguments, self.checked(values), strict=True):
            if argument.is_pointer:
                struct.pack_into("<Q", packed, argument.offset, value.device_address)
            else:
                struct.pack_into("<" + FORMATS[argument.type], packed, argument.offset, value)
        return bytes(packed)


def scalar_bits(argument: CallArgument, value: Any) -> int:
    """Return the 32 bits of a scalar as a signed number, for a call that takes no other."""
    return struct.unpack("<i", struct.pack("<" + FORMATS[argument.type], value))[0]


class RegisterCall(CallHandle):
    """A kernel that was started by its registers."""

    def __init__(self, ip: DefaultIP) -> None:
        self._ip = ip

    def ended(self, milliseconds: int) -> bool:
        # The read waits on the emulated card. On a real card it does not: the calling loop leaves the processor here.
        if self._is_idle():
            return True
        time.sleep(milliseconds / 1e5)
        return self._is_idle()

    def _is_idle(self) -> bool:
        return bool(self._ip.mmio.read(0) & IDLE)


class ErtCall(CallHandle):
    """A kernel that PYNQ 3.0.1 started by XRT's scheduler (ERT)."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def ended(self, milliseconds: int) -> bool:
        if not self._handle.done:
            self._handle.device._handle_events(milliseconds)
        return self._handle.done

    def failure(self) -> str | None:
        error = self._handle._future.exception()
        return None if error is None else str(error)


def start_kernel(ip: DefaultIP, *values: Any, signature: CallSignature | None = None) -> CallHandle:
    """Start a kernel of an overlay, with either PYNQ and on any card.

    Parameters
    ----------
    ip : pynq.DefaultIP
        The kernel's driver, such as ``overlay.vadd_1``.
    *values : buffer or number
        The arguments in the function's order: buffers for pointers, numbers for scalars.
    signature : CallSignature, optional
        Its arguments, if they were read before.

    Returns
    -------
    CallHandle
        Call its `wait()` before results are fetched.

    Raises
    ------
    OverlayError
        If the number of values or the type of an argument is not the kernel's, or an array is not contiguous.
    """
    registers: Any = ip._registers  # of PYNQ, which declares no types
    signature = signature or CallSignature(registers)
    if hasattr(ip.device, "start_kernel"):
        return ip.device.start_kernel(ip._fullpath, signature, values)
    if ip.device.has_capability("ERT"):  # of PYNQ 3.0.1
        return ErtCall(ip._start_ert(*signature.checked(values)))
    ip.mmio.write(0, signature.pack(values))
    ip.mmio.write(0, START)
    return RegisterCall(ip)
