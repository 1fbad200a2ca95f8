"""The training processor's loop, compiled natively, and a bare assembler for it: what tests of single steps need."""

import ctypes
import tempfile
from dataclasses import dataclass, field

import numpy as np

from bttlab.card.image import IMAGES
from bttlab.compiler.machine import machine

from compiled import library
from conftest import ROOT
from processor_native import FLAGS, NativeCall, NativeSample, aligned

C = machine()
DEPTHS = [bank.depth for bank in C.banks]
LANES = C.LANES
IMAGE_VECTORS = 2 + C.REGISTERS // 4 + C.CONSTANTS // LANES + C.FUNCTIONS // 2 + 3 * C.FUNCTION_ENTRIES // LANES
IMAGE_VECTORS += C.SHUFFLE_ENTRIES


def register(number: int) -> int:
    """The code of a register."""
    return 1 << 15 | number


@dataclass
class Operand:
    """An operand: bank or operand buffer, address, strides, offset table 1 or 2 (flag field A or B), token group."""

    where: int
    base: int = 0
    stride: tuple[int, ...] = (0, 0, 0, 0)
    token_offset: int = 0
    group: int = 0


@dataclass
class Instruction:
    """An instruction by its fields; loops of fewer levels than four are the inner ones."""

    unit: int
    operation: int = 0
    n: tuple[int, ...] = (1,)
    active: tuple[int, ...] | None = None
    operands: dict[int, Operand] = field(default_factory=dict)
    flags: int = 0
    count: int = 0
    immediates: tuple[int, int] = (0, 0)
    row: tuple[int, int] = (0, 0)  # level, base
    depth: int = 0
    accumulator_level: int = 7
    vector_level: int = 0
    token_offsets: tuple[int, int] = (0, 0)
    offset_level: int = 0
    after_end: dict[int, int] = field(default_factory=dict)
    after_drain: dict[int, int] = field(default_factory=dict)
    after_begin: dict[int, int] = field(default_factory=dict)

    def fields(self) -> np.ndarray:
        """Return its 64 fields."""
        fields = np.zeros(C.INSTRUCTION_FIELDS, np.int64)
        fields[C.FIELD_OPERATION] = self.unit | self.operation << 4
        fields[C.FIELD_FLAGS] = (
            self.flags
            | self.token_offsets[0] << C.OFFSET_A_SHIFT
            | self.token_offsets[1] << C.OFFSET_B_SHIFT
            | self.vector_level << C.VECTOR_LEVEL_SHIFT
            | self.offset_level << C.OFFSET_LEVEL_SHIFT
        )
        for needs, first in ((self.after_end, C.FIELD_AFTER_END), (self.after_drain, C.FIELD_AFTER_DRAIN)):
            for unit, count in needs.items():
                fields[first + unit] = count
        for unit, count in self.after_begin.items():
            fields[C.FIELD_AFTER_DRAIN + unit] = 1 << 15 | count
        fields[C.FIELD_BOUND : C.FIELD_BOUND + 4] = outer(self.n, 1)
        fields[C.FIELD_ACTIVE : C.FIELD_ACTIVE + 4] = outer(self.n if self.active is None else self.active, 1)
        for o, operand in self.operands.items():
            where = 1 << 15 | operand.where | operand.token_offset << 8 | operand.group << 10
            fields[C.FIELD_OPERAND + 6 * o : C.FIELD_OPERAND + 6 * o + 6] = (
                where,
                operand.base,
                *outer(operand.stride, 0),
            )
        fields[C.FIELD_COUNT] = self.count
        fields[C.FIELD_IMMEDIATE : C.FIELD_IMMEDIATE + 2] = self.immediates
        level, base = self.row
        fields[C.FIELD_ROW] = level | (base & 63) << 2 | self.depth << 8 | self.accumulator_level << 12
        return (fields & 0xFFFF).astype(np.uint16)


def outer(values: tuple[int, ...], missing: int) -> tuple[int, ...]:
    """Return the values of four levels, those of outer levels that are not named first."""
    return (missing,) * (C.LEVELS - len(values)) + tuple(values)


@dataclass
class Program:
    """A program by its parts; `sections` are ranges (first, count) of the list."""

    instructions: list[Instruction]
    sections: dict[int, tuple[int, int]] = field(default_factory=dict)
    registers: list[tuple[int, int, int, int]] = field(default_factory=list)
    constants: list[float] = field(default_factory=list)
    functions: list[tuple[int, int, int, float, float, float]] = field(default_factory=list)
    function_table: np.ndarray = field(default_factory=lambda: np.zeros((3, C.FUNCTION_ENTRIES), np.float32))
    entries: np.ndarray = field(default_factory=lambda: np.zeros((C.SHUFFLE_ENTRIES, 2 * LANES), np.uint16))
    model: tuple[int, int, int] = (C.SEQUENCE, 16, 16)  # sequence length, intents, slots
    offset_limit: int = 1 << 15

    def image(self, digest: int) -> np.ndarray:
        """Return the vectors that LOAD_PROGRAM takes."""
        head = [C.MAGIC, C.VERSION, digest, len(self.instructions)]
        for section in range(C.SECTIONS):
            head += self.sections.get(section, (0, 0))
        if C.BACKWARD not in self.sections and C.FORWARD in self.sections:
            head[6:8] = (sum(self.sections[C.FORWARD]), 0)
        model = [*self.model, *(self.offset_limit,) * C.OFFSET_TABLES, 0]
        registers = np.zeros((C.REGISTERS, 4), np.int32)
        registers[: len(self.registers)] = np.reshape(self.registers, (-1, 4))
        constants = np.zeros(C.CONSTANTS, np.float32)
        constants[: len(self.constants)] = self.constants
        functions = np.zeros((C.FUNCTIONS, 8), np.int32)
        for i, (base, mode, bits, low, high, steps) in enumerate(self.functions):
            functions[i, :3] = base, mode, bits
            functions[i, 3:6] = np.array([low, high, steps], np.float32).view(np.int32)
            functions[i, 6] = np.floor(np.float32(low) * np.float32(steps))
        parts = [
            np.array(head, np.int32),
            np.array(model + [0] * (LANES - len(model)), np.int32),
            registers.ravel(),
            constants.view(np.int32),
            functions.ravel(),
            np.ascontiguousarray(self.function_table, np.float32).view(np.int32).ravel(),
            np.ascontiguousarray(self.entries, np.uint16).view(np.int32).ravel(),
            *(instruction.fields().view(np.int32) for instruction in self.instructions),
        ]
        image = np.concatenate(parts).reshape(-1, LANES)
        checksum = np.array([-image.sum(dtype=np.int64) & 0xFFFFFFFF], np.uint32)
        image[1, 3 + C.OFFSET_TABLES] = checksum.view(np.int32)[0]
        return image


class Loop:
    """A machine of its own: every instance has its own memories."""

    def __init__(self) -> None:
        with tempfile.NamedTemporaryFile(suffix=".so") as file:
            file.write(library(ROOT / "tests" / "processor_driver.cpp", *FLAGS, "-O1", *IMAGES[-1].flags).read_bytes())
            file.flush()
            self._native = ctypes.CDLL(file.name)
        self._native.memory.restype = ctypes.c_void_p
        self._native.memory.argtypes = (ctypes.c_char_p, ctypes.c_int, ctypes.POINTER(ctypes.c_long))
        self.bank = [self._memory("bank", b, (depth, LANES)) for b, depth in enumerate(DEPTHS)]
        self.operand_buffer = self._memory("operand_buffer", 0, (C.ENGINES, C.ROWS, C.OPERAND_BUFFER_DEPTH, LANES))
        self.sums = self._memory("sums", 0, (C.ENGINES, 2, C.ROWS, C.ACCUMULATORS, LANES))
        self.statistic = self._memory("statistic", 0, (4, C.STATISTICS))
        self.loss_sum = self._memory("loss_sum", 0, (C.LAST_ROW + 1,))
        self.loss_margin = self._memory("loss_margin", 0, (C.LAST_ROW + 1,))
        self.argument = self._memory("argument", 0, (C.LAST_ROW + 1,), np.int32)
        description = self.call(C.DESCRIBE, results=np.zeros((8, LANES), np.int32))
        self.digest = int(description[0, 2])
        self.widths = description[1:].ravel()[: description[0, 3]]

    def _memory(self, name: str, index: int, shape: tuple[int, ...], kind: type = np.float32) -> np.ndarray:
        size = ctypes.c_long()
        address = self._native.memory(name.encode(), index, ctypes.byref(size))
        assert size.value == 4 * np.prod(shape), name
        buffer = (ctypes.c_char * size.value).from_address(address)
        return np.frombuffer(buffer, kind).reshape(shape)

    def fill(self, random: np.random.Generator) -> None:
        """Fill banks, operand buffers, sums and statistics with normal numbers."""
        for memory in (*self.bank, self.operand_buffer, self.sums, self.statistic):
            memory[:] = random.normal(size=memory.shape)

    def call(
        self,
        command: int,
        samples: int = 0,
        optimizer: tuple[int, float, float, float] = (0, 0.0, 0.0, 0.0),
        records: np.ndarray | None = None,
        results: np.ndarray | None = None,
        memory: np.ndarray | None = None,
        image: np.ndarray | None = None,
    ) -> np.ndarray:
        """Call the kernel; returns `results`, a result if it is not given."""
        results = np.zeros((5, LANES), np.int32) if results is None else results
        name, *factors = optimizer
        arguments = [command, samples, name, *(ctypes.c_float(value) for value in factors)]
        copies = [None if a is None else aligned(a) for a in (records, results, memory, image)]
        pointers = [None if a is None else ctypes.c_void_p(a.ctypes.data) for a in copies]
        self._native.trainer(*arguments, *pointers)
        if memory is not None:
            memory[:] = copies[2]
        results[:] = copies[1]
        return results

    def reach(self, command: int, samples: int = 0) -> list[int]:
        """Return how many bytes a call reaches behind each pointer."""
        reached = (ctypes.c_longlong * 4)()
        self._native.trainer_reach(command, samples, 0, *(ctypes.c_float(0),) * 3, *(None,) * 4, reached)
        return list(reached)

    def load(self, program: Program) -> int:
        """Load a program; returns the status."""
        image = program.image(self.digest)
        return int(self.call(C.LOAD_PROGRAM, len(image), image=image)[0, 0])

    def run(
        self,
        *instructions: Instruction,
        sample: NativeSample | None = None,
        section: NativeCall | None = None,
        **program,
    ) -> int:
        """Load instructions as a program, run them, return the cycles."""
        assert self.load(Program(list(instructions), **program)) == C.DONE
        section = NativeCall() if section is None else section
        section.first, section.count = 0, len(instructions)
        sample = NativeSample(tokens=C.SEQUENCE) if sample is None else sample
        return self._native.execute(ctypes.byref(section), ctypes.byref(sample))


def same(one: np.ndarray, other: np.ndarray) -> None:
    """Two arrays are equal to the bit."""
    assert one.shape == other.shape
    np.testing.assert_array_equal(one.view(np.int32), other.view(np.int32))
