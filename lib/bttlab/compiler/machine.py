"""Widths and depths of the machine: the constants of hls_src/processor, read from the C++ headers.

The source is scheduled for either of `CLOCKS`. `M` is the machine of the overlay's clock. Programs are compiled, timed
and checked for `target()`: for `M`, or within `targeting` for another clock's machine, which differs in its latency.
"""

import ast
import re
from collections import namedtuple
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from typing_extensions import Self

from bttlab.compiler.errors import ProgramError
from bttlab.util.places import ROOT

SOURCE = ROOT / "hls_src" / "processor"
_BANK = re.compile(r"BANK\((\d+), (\d+), ([UB])\)")
_PORT = re.compile(r"PORT\((\w+), (\w+), (\d), ([\d, ]+)\)")
_ENUM = re.compile(r"enum (\w+) \{(.*?)\};", re.DOTALL)
_GIVEN = re.compile(r"^#define (BTTLAB_CLOCK_MHZ) (\d+)$", re.MULTILINE)  # a constant that a compiler's -D replaces
_DEFINITION = re.compile(r"^constexpr int ([^;]*);", re.MULTILINE)
_OPERATORS = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a // b,
}


@dataclass(frozen=True)
class Bank:
    depth: int  # in vectors
    block: str  # "uram" or "bram"


@dataclass(frozen=True)
class Port:
    name: str
    unit: int
    operand: int
    stores: bool
    banks: tuple[int, ...]  # banks that it reaches

    @property
    def mask(self) -> int:
        return sum(1 << bank for bank in self.banks)


# The names of config.h and isa.h that Python uses.
Names = namedtuple(
    "Names",
    "CLOCK_MHZ LANES ROWS ENGINES ACCUMULATORS OPERAND_BUFFER_DEPTH UNITS LEVELS OPERANDS LATENCY SUM_DISTANCE FETCH "
    "QUEUE PROGRAM_DEPTH SEQUENCE STATISTICS ROW_ACCUMULATORS SHUFFLE_VECTORS SHUFFLE_ENTRIES FUNCTION_ENTRIES "
    "FUNCTIONS REGISTERS CONSTANTS SCALARS OFFSET_TABLES BANKS IN_BANK OUT_BANK TRANSFER_VECTORS "
    "ENGINE_0 ENGINE_1 DRAIN_0 DRAIN_1 VECTOR SHUFFLE UPDATE EXPAND ACCUMULATE REDUCE COPY ADD SUM VARIANCE NORMALIZE "
    "AFFINE NORM_SUMS NORM_BACK COLUMNS FUNCTION TIMES_FUNCTION TANH_BACK MAXIMUM EXPONENT SCALE LOSS_BACK DOT "
    "SOFTMAX_BACK CHECK ONE PONG CLEAR INTENT LOSS OFFSET_A_SHIFT OFFSET_B_SHIFT VECTOR_LEVEL_SHIFT OFFSET_LEVEL_SHIFT "
    "FIELD_OPERATION FIELD_FLAGS FIELD_AFTER_END FIELD_AFTER_DRAIN FIELD_BOUND FIELD_ACTIVE FIELD_OPERAND FIELD_COUNT "
    "FIELD_IMMEDIATE FIELD_ROW INSTRUCTION_FIELDS DESCRIBE LOAD STORE TRAIN PREDICT LOAD_PROGRAM NOT_REACHED DONE "
    "BAD_LENGTH BAD_TOKEN BAD_INTENT BAD_SLOT BAD_LEARNING_RATE BAD_OPTIMIZER LOSS_NOT_FINITE STATE_NOT_FINITE "
    "GRADIENT_NOT_FINITE UPDATE_NOT_FINITE NO_PROGRAM PROGRAM_STUCK MAGIC VERSION WITH_ROWS "
    "WITH_SUMS FEATURES",
)


class Machine(Names):
    """The machine that a program is compiled for; its attributes in capitals are constants of config.h and isa.h."""

    constants: dict[str, int]  # constants of config.h, in the header's order
    banks: tuple[Bank, ...]
    ports: tuple[Port, ...]  # loads, then stores
    enums: dict[str, tuple[str, ...]]  # names of isa.h, by the name of their enumeration

    def __new__(
        cls,
        constants: dict[str, int],
        banks: tuple[Bank, ...],
        ports: tuple[Port, ...],
        names: dict[str, int],
        enums: dict[str, tuple[str, ...]],
    ) -> Self:
        values = names | constants
        if missing := [name for name in cls._fields if name not in values]:
            raise ProgramError(f"neither config.h nor isa.h defines {missing[0]}")
        machine = super().__new__(cls, *(values[name] for name in cls._fields))
        machine.constants, machine.banks, machine.ports, machine.enums = constants, banks, ports, enums
        machine._port_of = {(port.unit, port.operand, port.stores): port for port in ports}
        return machine

    __eq__, __hash__ = object.__eq__, object.__hash__

    def to_dict(self) -> dict[str, Any]:
        """Return version, digest, widths, banks and ports as JSON-ready values."""
        memories = {
            "banks": [{"depth": bank.depth, "block": bank.block} for bank in self.banks],
            "ports": {port.name: list(port.banks) for port in self.ports},
        }
        return {"version": self.VERSION, "digest": self.digest, "widths": dict(self.constants), **memories}

    def reach(self, unit: int, operand: int, stores: bool) -> Port:
        return self._port_of[unit, operand, stores]

    @property
    def widths(self) -> tuple[int, ...]:
        """All that a program depends on: config.h's constants, the banks' depths, and the banks of each port."""
        depths, masks = (bank.depth for bank in self.banks), (port.mask for port in self.ports)
        return (*self.constants.values(), *depths, *masks)

    @property
    def digest(self) -> int:
        """Digest of the widths, which a program's image contains: FNV-1a without its highest bit."""
        value = 2166136261
        for width in self.widths:
            value = (value ^ width & 0xFFFFFFFF) * 16777619 % 2**32
        return value & 0x7FFFFFFF


def read_machine(source: Path = SOURCE, clock_mhz: int | None = None) -> Machine:
    """Return the machine that a folder with config.h and isa.h describes, at the overlay's clock by default."""
    config, isa = ((source / name).read_text(encoding="utf-8") for name in ("config.h", "isa.h"))
    banks = {int(m[1]): Bank(int(m[2]), {"U": "uram", "B": "bram"}[m[3]]) for m in _BANK.finditer(config)}
    names: dict[str, int] = {}
    enums: dict[str, tuple[str, ...]] = {}
    for match in _ENUM.finditer(isa):
        value, before = 0, len(names)
        for entry in match[2].split(","):
            name, _, given = entry.partition("=")
            if name.strip():
                value = int(given, 0) if given.strip() else value
                names[name.strip()] = value
                value += 1
        enums[match[1]] = tuple(names)[before:]
    for name in ("MAGIC", "VERSION"):
        names[name] = int(re.search(rf"constexpr int {name} = (\w+);", isa)[1], 0)
    readers, writers = config.index("BTTLAB_READERS"), config.index("BTTLAB_WRITERS")
    ports = tuple(
        Port(m[1], names[m[2]], int(m[3]), m.start() > writers, tuple(int(bank) for bank in m[4].split(",")))
        for m in _PORT.finditer(config, readers)
    )
    constants = read_constants(source / "config.h", clock_mhz)
    return Machine(constants, tuple(banks[i] for i in range(len(banks))), ports, names, enums)


def read_constants(header: Path, clock_mhz: int | None = None) -> dict[str, int]:
    """Return the integer constants that a header defines, in order; each may use those before it.

    `clock_mhz` takes the place of the header's own BTTLAB_CLOCK_MHZ, as a compiler's -D does.

    Raise `ProgramError` if a definition has anything but names, integers, + - * / and brackets.
    """
    constants: dict[str, int] = {}
    text = header.read_text(encoding="utf-8")
    given = {match[1]: int(match[2]) for match in _GIVEN.finditer(text)}
    if clock_mhz is not None:
        given["BTTLAB_CLOCK_MHZ"] = clock_mhz
    for match in _DEFINITION.finditer(text):
        for definition in match[1].split(","):
            name, _, expression = definition.partition("=")
            try:
                constants[name.strip()] = value_of(expression, given | constants)
            except (KeyError, SyntaxError):
                raise ProgramError(
                    f"{header}: {definition.strip()!r} is no constant that Python can read; use integers, constants "
                    "before it, + - * / and brackets"
                ) from None
    return constants


def value_of(expression: str, constants: Mapping[str, int]) -> int:
    """Return the value of an expression of C++ in integers and constants; KeyError or SyntaxError if it has others."""
    return _value(ast.parse(expression.strip(), mode="eval").body, constants)


def _value(node: ast.expr, constants: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name):
            return constants[name]
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_value(left, constants), _value(right, constants))
    raise KeyError(node)


M = read_machine()  # the machine of this package's overlay
CLOCKS = (M.CLOCK_MHZ, 300)  # MHz: of the overlay, and a faster one, for which nothing but the model was run
_target: ContextVar[Machine | None] = ContextVar("target", default=None)


@cache
def machine_of(clock_mhz: int) -> Machine:
    """Return the machine whose schedule is made for one of `CLOCKS`; ProgramError for another clock."""
    if clock_mhz not in CLOCKS:
        named = " and ".join(map(str, CLOCKS))
        raise ProgramError(f"no machine is scheduled for {clock_mhz} MHz: config.h has those of {named} MHz")
    return M if clock_mhz == M.CLOCK_MHZ else read_machine(clock_mhz=clock_mhz)


def target() -> Machine:
    """Return the machine that programs are compiled, timed and checked for."""
    return _target.get() or M


@contextmanager
def targeting(machine: Machine) -> Iterator[None]:
    """Compile, time and check programs for a machine within the context."""
    token = _target.set(machine)
    try:
        yield
    finally:
        _target.reset(token)
