"""Arguments and registers of a kernel, in the layout of a Vitis HLS kernel with an s_axilite interface."""

import ctypes
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from bttlab.util.errors import BttlabError

CONTROL_RANGE = 0x1000  # bytes of one kernel's AXI-Lite window
FIRST_ARGUMENT = 0x10  # after AP_CTRL and the three interrupt registers
SCALARS = {"int": ctypes.c_int32, "unsigned int": ctypes.c_uint32, "float": ctypes.c_float}


class OverlayError(BttlabError):
    """An overlay, or the description of a kernel in it, is invalid or cannot be used."""


@dataclass(frozen=True)
class Argument:
    """One argument of a kernel, named as in the C++ source.

    Its type is one of `SCALARS`, "int*", "float*", or "void*" for a pointer to any other type. A pointer has the HBM
    bank and the width in bits of its port, to which buffers must be aligned.
    """

    name: str
    ctype: str
    bank: int | None = None
    width: int = 512

    @property
    def is_pointer(self) -> bool:
        return self.ctype.endswith("*")

    @property
    def size(self) -> int:
        return 8 if self.is_pointer else 4

    def decode(self, data: bytes | bytearray) -> int | float:
        """Return the value of its register: a number, or the device address of a pointer."""
        return (ctypes.c_uint64 if self.is_pointer else SCALARS[self.ctype]).from_buffer_copy(data).value


@dataclass(frozen=True)
class Kernel:
    """A kernel with the AP_CTRL_HS protocol and its arguments, in the function's order, in AXI-Lite registers."""

    name: str
    arguments: tuple[Argument, ...]

    @property
    def vlnv(self) -> str:
        """Name that PYNQ binds a driver to."""
        return f"xilinx.com:hls:{self.name}:1.0"

    @property
    def instance(self) -> str:
        """Name of its compute unit, which is the overlay's attribute."""
        return f"{self.name}_1"

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Offset of each argument's register from the kernel's base address, in bytes.

        Vitis HLS adds a reserved word after every argument: a 32-bit scalar takes 8 bytes, a 64-bit pointer 12.
        """
        offsets, offset = [], FIRST_ARGUMENT
        for argument in self.arguments:
            offsets.append(offset)
            offset += argument.size + 4
        return tuple(offsets)

    @cached_property
    def prototype(self) -> Any:
        """ctypes type of the compiled function; calls release the GIL."""
        types = (ctypes.c_void_p if argument.is_pointer else SCALARS[argument.ctype] for argument in self.arguments)
        return ctypes.CFUNCTYPE(None, *types)


TRAINER_KERNEL = Kernel(
    "trainer",
    (
        Argument("command", "int"),
        Argument("samples", "int"),
        Argument("optimizer", "int"),
        Argument("beta1", "float"),
        Argument("beta2", "float"),
        Argument("epsilon", "float"),
        Argument("records", "void*", bank=0),
        Argument("results", "void*", bank=1),
        Argument("memory", "void*", bank=2),
        Argument("program_image", "void*", bank=3),
    ),
)
