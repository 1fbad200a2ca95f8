"""How wide and how deep the machine is: the constants of hls_src/processor, read where the C++ compiler reads them."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from bttlab.places import ROOT
from bttlab.u50.hardware import read_constants

SOURCE = ROOT / "hls_src" / "processor"
_BANK = re.compile(r"BANK\((\d+), (\d+), ([UB])\)")
_ENUM = re.compile(r"enum (\w+) \{(.*?)\};", re.DOTALL)


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
