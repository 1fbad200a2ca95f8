"""The training processor compiled on the spot and opened to tests: its memories as NumPy arrays."""

import ctypes
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import numpy as np

from bttlab.card.processor import optimizer_arguments, result_dtype
from bttlab.compiler.errors import ProgramError
from bttlab.compiler.machine import M
from bttlab.compiler.memory.layout import Layout
from bttlab.compiler.program import ModelProgram, Program
from bttlab.model.config import Optimizer

from build_library import library
from conftest import ROOT

LANES, SEQUENCE = M.LANES, M.SEQUENCE

FLAGS = (
    *("-std=c++17", "-O1", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared"),
    *("-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-unknown-pragmas", "-Wno-unused-label", "-Wno-psabi"),
)
FUNCTION = [*((name, "i4") for name in ("base", "mode", "bits")), *((name, "f4") for name in ("low", "high", "steps"))]
FUNCTION.append(("first", "i4"))
PROGRAM = np.dtype(
    [
        *(
            ("instructions", "i4"),
            ("section", "i4", (6, 2)),
            ("lengths", "i4", 4),
            ("offset_limit", "i4", M.OFFSET_TABLES),
        ),
        *(("registers", "i4", (M.REGISTERS, 4)), ("constant", "f4", M.CONSTANTS)),
        ("function", FUNCTION, M.FUNCTIONS),
    ]
)


@dataclass
class Operand:
    where: int = 0  # bank, or engine of a buffer operand
    base: int = 0
    stride: tuple[int, ...] = (0, 0, 0, 0)
    token_offset: int = 0  # 1: of flag field A, 2: of B
    group: int = 0


@dataclass
class Instruction:
    """An instruction in plain numbers; bounds, active and count are codes."""

    unit: int
    operation: int
    n: tuple[int, ...]
    operands: dict[int, Operand]
    active: tuple[int, ...] = ()
    flags: int = 0
    count: int = 0
    immediate: tuple[int, int] = (0, 0)
    row_level: int = 0
    row_base: int = 0
    depth_mask: int = 0
    accumulator_level: int = 0
    vector_level: int = 0
    offset_tables: tuple[int, int] = (0, 0)
    offset_level: int = 0

    def __post_init__(self) -> None:
        self.active = self.active or self.n

    def vectors(self) -> np.ndarray:
        """Both vectors of 16 integers, of 64 fields."""
        a, b = self.offset_tables
        flags = self.flags | a << 8 | b << 10 | self.vector_level << 12 | self.offset_level << 14
        fields = [self.unit | self.operation << 4, flags, *[0] * 14, *self.n, *self.active]
        for o in range(6):
            operand = self.operands.get(o)
            if operand is None:
                fields += [0] * 6
            else:
                where = 1 << 15 | operand.where | operand.token_offset << 8 | operand.group << 10
                fields += [where, operand.base, *operand.stride]
        row = self.row_level | (self.row_base & 63) << 2 | self.depth_mask << 8 | self.accumulator_level << 12
        return packed([*fields, self.count, *self.immediate, row])


def packed(fields: Sequence[int]) -> np.ndarray:
    """Return an instruction's 64 fields as both of its vectors of 16 integers."""
    fields = np.array(fields).astype(np.uint16).astype(np.uint32)
    return (fields[::2] | fields[1::2] << 16).reshape(2, LANES)


@dataclass
class Tables:
    """What a program brings beside its instructions."""

    registers: list[tuple[int, int, int, int]]  # offset, shift, low, high
    constant: np.ndarray
    functions: list[tuple[int, int, int, float, float, float]]  # base, mode, bits, low, high, steps
    function_table: np.ndarray
    shuffle_table: np.ndarray


class Call(ctypes.Structure):
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


class Sample(ctypes.Structure):
    """Sample of state.h."""

    _fields_ = (
        ("tokens", ctypes.c_int),
        ("intent", ctypes.c_int),
        ("scalar", ctypes.c_float * 14),
        ("token_offset", ctypes.c_int * SEQUENCE * M.OFFSET_TABLES),
        ("slot", ctypes.c_int * SEQUENCE),
    )


class Native:
    """A loaded driver and its memories by name."""

    def __init__(self, *flags: str) -> None:
        with tempfile.NamedTemporaryFile(suffix=".so") as file:
            file.write(library(ROOT / "tests" / "helpers" / "processor_driver.cpp", *FLAGS, *flags).read_bytes())
            file.flush()
            self.library = ctypes.CDLL(file.name)
        self.library.memory.restype = ctypes.c_void_p
        self.memories = {f"bank {b}": self.open("bank", b).reshape(-1, LANES) for b in range(M.BANKS)}
        buffer = self.open("operand_buffer").reshape(2, M.ROWS, -1, LANES)
        self.memories["operand_buffer"] = buffer[:, :, : M.OPERAND_BUFFER_DEPTH]
        self.memories["sums"] = self.open("sums").reshape(2, 2, M.ROWS, M.ACCUMULATORS, LANES)
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

    def load(self, tables: Tables) -> None:
        """Load the tables of a program."""
        self.program["registers"] = tables.registers
        self.program["constant"] = tables.constant
        for g, function in enumerate(tables.functions):
            *_, low, _, steps = function
            first_step = int(np.floor(np.float32(low) * np.float32(steps)))
            self.program["function"][g] = (*function, first_step)
        fields = tables.shuffle_table.astype(np.uint32)
        entries = aligned((fields[:, ::2] | fields[:, 1::2] << 16).astype(np.uint32))
        coefficients = np.ascontiguousarray(tables.function_table)
        self.library.take_tables(*(ctypes.c_void_p(table.ctypes.data) for table in (coefficients, entries)))

    def run(self, instructions: Sequence[np.ndarray], sample: Sample, call: Call, again: bool = False) -> int:
        """Execute instructions, each of two vectors; `call` gets the flags. Returns the cycles.

        `again` says that they are those of the last run.
        """
        for i, vectors in enumerate(instructions):
            self.instructions[:, i] = vectors
        if not again:
            self.library.loaded()
        call.count = len(instructions)
        cycles = self.library.execute(ctypes.byref(call), ctypes.byref(sample))
        assert not call.stuck
        return cycles


class NativeProcessor:
    """The machine in a shared library, running one program at a time: the cycle-accurate or the functional model."""

    def __init__(self, library: Path):
        self._library = ctypes.CDLL(str(library))
        self.program: Program | None = None

    def _call(self, command, samples=0, optimizer=None, records=None, results=None, memory=None, image=None) -> None:
        optimizer = optimizer or Optimizer("sgd")
        pointers = [None if a is None else a.ctypes.data_as(ctypes.c_void_p) for a in (records, results, memory, image)]
        name, *constants = optimizer_arguments(optimizer)
        numbers = [ctypes.c_int(n) for n in (command, samples, name)]
        self._library.trainer(*numbers, *(ctypes.c_float(c) for c in constants), *pointers)

    def load_program(self, program: Program) -> None:
        """Load a program; ProgramError if the machine refuses it because it was made for another machine."""
        image = aligned(program.image)
        result = aligned(np.zeros(1, result_dtype()))
        self._call(M.LOAD_PROGRAM, len(image), results=result, image=image)
        if result["status"][0] != M.DONE:
            raise ProgramError(
                "the machine refuses the program: it was made for another width or version; compile it again"
            )
        self.program = program

    @property
    def _layout(self) -> Layout:
        assert isinstance(self.program, ModelProgram)
        return self.program.layout

    _loaded: Sequence[Mapping[str, np.ndarray]] = ()

    def load(self, *states: Mapping[str, np.ndarray]) -> None:
        """Load parameters, then first and second moments if given, on chip."""
        layout, self._loaded = self._layout, states
        memory = aligned(np.zeros((3 * layout.vectors, M.LANES), np.float32))
        for n, state in enumerate(states):
            memory[n * layout.vectors : (n + 1) * layout.vectors] = layout.pack(state)
        self._call(M.LOAD, memory=memory)

    def store(self) -> list[dict[str, np.ndarray]]:
        """Return the parameters, first moments and second moments on chip."""
        layout = self._layout
        memory = aligned(np.zeros((3 * layout.vectors, M.LANES), np.float32))
        self._call(M.STORE, memory=memory)
        parts = [memory[n * layout.vectors : (n + 1) * layout.vectors] for n in range(3)]
        return [layout.unpack(*each) for each in zip_longest(parts, self._loaded)]

    def train(self, records: np.ndarray, optimizer: Optimizer) -> np.ndarray:
        results = aligned(np.zeros(len(records), result_dtype()))
        self._call(M.TRAIN, len(records), optimizer, aligned(records), results)
        return results

    def predict(self, records: np.ndarray) -> np.ndarray:
        results = aligned(np.zeros(len(records), result_dtype()))
        self._call(M.PREDICT, len(records), None, aligned(records), results)
        return results


def aligned(array: np.ndarray) -> np.ndarray:
    buffer = np.zeros(array.nbytes + 64, np.uint8)
    first = -buffer.ctypes.data % 64
    copy = buffer[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
