"""The training processor compiled on the spot and opened to tests: its memories as NumPy arrays."""

import ctypes
import tempfile
from collections.abc import Sequence
from dataclasses import astuple

import numpy as np

from bttlab.card.processor import _aligned

from compiled import library
from conftest import ROOT
from processor_interpreter import LANES, SEQUENCE, C, Call, Machine, Sample

FLAGS = (
    *("-std=c++17", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared"),
    *("-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-unknown-pragmas", "-Wno-unused-label", "-Wno-psabi"),
)
FUNCTION = [*((name, "i4") for name in ("base", "mode", "bits")), *((name, "f4") for name in ("low", "high", "steps"))]
FUNCTION.append(("first", "i4"))
PROGRAM = np.dtype(
    [
        *(
            ("instructions", "i4"),
            ("section", "i4", (6, 2)),
            ("lengths", "i4", 3),
            ("offset_limit", "i4", C.OFFSET_TABLES),
        ),
        *(("registers", "i4", (C.REGISTERS, 4)), ("constant", "f4", C.CONSTANTS)),
        ("function", FUNCTION, C.FUNCTIONS),
    ]
)


class NativeCall(ctypes.Structure):
    """Run of state.h."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("first", "count", "optimizer")),
        *((name, ctypes.c_float) for name in ("beta1", "rest1", "beta2", "rest2", "epsilon")),
        ("pending", ctypes.c_int),
        *((name, ctypes.c_float) for name in ("rate", "step", "root", "keep")),
        ("overflow", ctypes.c_bool),
        ("state_overflow", ctypes.c_bool * 3),
        ("stuck", ctypes.c_bool),
    )


class NativeSample(ctypes.Structure):
    """Sample of state.h."""

    _fields_ = (
        ("tokens", ctypes.c_int),
        ("intent", ctypes.c_int),
        ("scalar", ctypes.c_float * 14),
        ("token_offset", ctypes.c_int * SEQUENCE * C.OFFSET_TABLES),
        ("slot", ctypes.c_int * SEQUENCE),
    )

    @classmethod
    def of(cls, sample: Sample) -> "NativeSample":
        native = cls(sample.tokens, sample.intent)
        native.scalar[:] = sample.scalar.tolist()
        native.slot[:] = sample.slot.tolist()
        for table in range(C.OFFSET_TABLES):
            native.token_offset[table][:] = sample.token_offset[table].tolist()
        return native


class Native:
    """A loaded driver; `memories` are those of the interpreter, by the same names."""

    def __init__(self, *flags: str) -> None:
        with tempfile.NamedTemporaryFile(suffix=".so") as file:
            level = "-O3" if "-DBTTLAB_FAST" in flags else "-O1"  # at -O3 the loop takes a minute to compile
            file.write(library(ROOT / "tests" / "processor_driver.cpp", *FLAGS, level, *flags).read_bytes())
            file.flush()
            self.library = ctypes.CDLL(file.name)
        self.library.memory.restype = ctypes.c_void_p
        self.memories = {f"bank {b}": self.open("bank", b).reshape(-1, LANES) for b in range(C.BANKS)}
        buffer = self.open("operand_buffer").reshape(2, C.ROWS, -1, LANES)
        self.memories["operand_buffer"] = buffer[:, :, : C.OPERAND_BUFFER_DEPTH]
        self.memories["sums"] = self.open("sums").reshape(2, 2, C.ROWS, C.ACCUMULATORS, LANES)
        self.memories["statistic"] = self.open("statistic").reshape(4, -1)
        for name, kind in (("loss_sum", "f4"), ("loss_margin", "f4"), ("argument", "i4")):
            self.memories[name] = self.open(name, kind=kind)
        self.program = self.open("program", kind=PROGRAM)[0]
        self.instructions = self.open("instructions", kind="u4").reshape(2, -1, LANES)

    def open(self, name: str, index: int = 0, kind: str | np.dtype = "f4") -> np.ndarray:
        size = ctypes.c_long()
        address = self.library.memory(name.encode(), index, ctypes.byref(size))
        assert address, name
        buffer = (ctypes.c_char * size.value).from_address(address)
        return np.frombuffer(buffer, kind)

    def load(self, machine: Machine) -> None:
        """Take over the tables of an interpreter's machine."""
        self.program["registers"] = machine.registers
        self.program["constant"] = machine.constant
        for g, function in enumerate(machine.functions):
            first_step = int(np.floor(np.float32(function.low) * np.float32(function.steps)))
            self.program["function"][g] = (*astuple(function), first_step)
        fields = machine.shuffle_table.astype(np.uint32)
        entries = _aligned((fields[:, ::2] | fields[:, 1::2] << 16).astype(np.uint32))
        coefficients = np.ascontiguousarray(machine.function_table)
        self.library.take_tables(*(ctypes.c_void_p(table.ctypes.data) for table in (coefficients, entries)))

    def run(self, instructions: Sequence[np.ndarray], sample: Sample, call: Call) -> int:
        """Execute instructions, each of two vectors; `call` gets the flags. Returns the cycles."""
        for i, vectors in enumerate(instructions):
            self.instructions[:, i] = vectors
        self.library.loaded()
        names = ("optimizer", "beta1", "rest1", "beta2", "rest2", "epsilon", "pending", "rate", "step", "root", "keep")
        native = NativeCall(count=len(instructions), **{name: getattr(call, name) for name in names})
        cycles = self.library.execute(ctypes.byref(native), ctypes.byref(NativeSample.of(sample)))
        assert not native.stuck
        call.overflow, call.state_overflow = native.overflow, list(native.state_overflow)
        return cycles


def memories(machine: Machine) -> dict[str, np.ndarray]:
    """An interpreter's memories by the names of `Native.memories`."""
    names = ("operand_buffer", "sums", "statistic", "loss_sum", "loss_margin", "argument")
    banks = {f"bank {b}": bank for b, bank in enumerate(machine.bank)}
    return banks | {name: getattr(machine, name) for name in names}
