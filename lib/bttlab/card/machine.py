"""How wide and how deep the machine is: the constants of hls_src/processor, read where the C++ compiler reads them."""

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from bttlab.places import ROOT
from bttlab.u50.kernel import OverlayError

SOURCE = ROOT / "hls_src" / "processor"
_BANK = re.compile(r"BANK\((\d+), (\d+), ([UB])\)")
_ENUM = re.compile(r"enum (\w+) \{(.*?)\};", re.DOTALL)
_DEFINITION = re.compile(r"^constexpr int ([^;]*);", re.MULTILINE)
_OPERATORS = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a // b,
}


@dataclass(frozen=True)
class Bank:
    """A bank of on-chip memory.

    Attributes
    ----------
    depth : int
        In words.
    block : {"uram", "bram"}
    """

    depth: int
    block: str


@dataclass(frozen=True)
class Machine:
    """The machine that a program is compiled for.

    Attributes
    ----------
    constants : dict of str to int
        Of config.h, by their names there.
    banks : tuple of Bank
    names : dict of str to int
        Units, operations, flags, fields, sections, commands and statuses of isa.h.
    statuses : tuple of str
        What a sample's result says, by its number.
    """

    constants: dict[str, int]
    banks: tuple[Bank, ...]
    names: dict[str, int]
    statuses: tuple[str, ...]

    def __getattr__(self, name: str) -> int:
        for table in (self.__dict__.get("constants", {}), self.__dict__.get("names", {})):
            if name in table:
                return table[name]
        raise AttributeError(f"neither config.h nor isa.h defines {name}")

    def to_dict(self) -> dict[str, Any]:
        """Return version, digest, widths and banks as JSON-ready values."""
        banks = [{"depth": bank.depth, "block": bank.block} for bank in self.banks]
        return {"version": self.VERSION, "digest": self.digest, "widths": dict(self.constants), "banks": banks}

    @property
    def digest(self) -> int:
        """What a program is bound to: FNV-1a over config.h's constants and the banks' depths, without its sign."""
        value = 2166136261
        for width in (*self.constants.values(), *(bank.depth for bank in self.banks)):
            value = (value ^ width & 0xFFFFFFFF) * 16777619 % 2**32
        return value & 0x7FFFFFFF


def read_machine(source: Path = SOURCE) -> Machine:
    """Return the machine that a folder with config.h and isa.h describes."""
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
    constants = read_constants(source / "config.h")
    return Machine(constants, tuple(banks[i] for i in range(len(banks))), names, enums["Status"])


@cache
def machine() -> Machine:
    """Return the machine of this package."""
    return read_machine()


def read_constants(header: Path) -> dict[str, int]:
    """Return the integer constants that a header defines, in order; each may use those before it.

    Raises
    ------
    OverlayError
        If a definition is more than names, integers, + - * / and brackets.
    """
    constants: dict[str, int] = {}
    for match in _DEFINITION.finditer(header.read_text(encoding="utf-8")):
        for definition in match[1].split(","):
            name, _, expression = definition.partition("=")
            try:
                constants[name.strip()] = _value(ast.parse(expression.strip(), mode="eval").body, constants)
            except (KeyError, SyntaxError):
                raise OverlayError(
                    f"{header}: {definition.strip()!r} is no constant that Python can read; use integers, constants "
                    "before it, + - * / and brackets"
                ) from None
    return constants


def _value(node: ast.expr, constants: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name):
            return constants[name]
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_value(left, constants), _value(right, constants))
    raise KeyError(node)
