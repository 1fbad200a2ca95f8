"""Arguments and registers of a kernel, in the layout of a Vitis HLS kernel with an s_axilite interface."""

import ctypes
import keyword
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from bttlab.util.errors import BttlabError

CONTROL_RANGE = 0x1000  # bytes of one kernel's AXI-Lite window
FIRST_ARGUMENT = 0x10  # after AP_CTRL and the three interrupt registers
SCALARS = {"int": ctypes.c_int32, "unsigned int": ctypes.c_uint32, "float": ctypes.c_float}
CTYPES = (*SCALARS, "int*", "float*", "void*")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,29}")  # "name:name_1" must fit into the 64 bytes of an ip_data


class OverlayError(BttlabError):
    """An overlay, or the description of a kernel in it, is invalid or cannot be used."""


@dataclass(frozen=True)
class Argument:
    """One argument of a kernel, named as in the C++ source.

    Its type is in `CTYPES`; "void*" points to any other type. A pointer has the HBM bank and the width in bits of its
    port, to which buffers must be aligned.
    """

    name: str
    ctype: str
    bank: int | None = None
    width: int = 512

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or keyword.iskeyword(self.name) or self.name == "CTRL":
            raise OverlayError(f"kernel argument {self.name!r}: its name must be a C name of up to 30 characters")
        if self.ctype not in CTYPES:
            raise OverlayError(f"kernel argument {self.name}: type {self.ctype!r} is not among {', '.join(CTYPES)}")
        if self.is_pointer != isinstance(self.bank, int):
            raise OverlayError(
                f"kernel argument {self.name} ({self.ctype}): pointers have an HBM bank, scalars have none"
            )
        if self.width not in (32, 64, 128, 256, 512):
            raise OverlayError(f"kernel argument {self.name}: a port is 32 to 512 bits wide, not {self.width}")

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
    arguments: Sequence[Argument]

    def __post_init__(self) -> None:
        object.__setattr__(self, "arguments", tuple(self.arguments))
        if not _NAME.fullmatch(self.name):
            raise OverlayError(f"kernel {self.name!r}: its name must be a C name of up to 30 characters")
        names = [argument.name for argument in self.arguments]
        if len(set(names)) < len(names):
            raise OverlayError(f"kernel {self.name}: two arguments have the same name, among {', '.join(names)}")
        if self.arguments and self.offsets[-1] + self.arguments[-1].size > CONTROL_RANGE:
            raise OverlayError(f"kernel {self.name}: {len(names)} arguments do not fit into {CONTROL_RANGE} bytes")

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
