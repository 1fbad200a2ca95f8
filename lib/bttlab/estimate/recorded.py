"""Record of the schedule of the committed source, because the analysis needs clang and half a minute.

`make schedule SCHEDULE=--record` (`bttlab_hardware`) writes `data/u50/machine.json` with the digest of the source. A
test repeats the analysis and compares.
"""

import hashlib
import json
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

from bttlab.compiler.instruction import Memory
from bttlab.compiler.machine import M
from bttlab.estimate.constants import read_data
from bttlab.estimate.geometry import Blocks, blocks
from bttlab.util.places import ROOT

SOURCE = ROOT / "hls_src" / "processor"
RECORD = ROOT / "data" / "u50" / "machine.json"
RESOURCES = {
    "lookup_tables": "LUTs",
    "flip_flops": "flip-flops",
    "dsps": "DSPs",
    "bram36": "BRAM36",
    "uram": "UltraRAM blocks",
}
COSTS = {  # the operator of data/u50/operators.json that each kind of operator is
    "fadd": "add",
    "fmul": "multiply",
    "fdiv": "divide",
    "fsqrt": "square_root",
    "fcompare": "compare",
    "fconvert": "convert",
    "ffloor": "convert",
}
# Variables of the source: the memory of each bank; all rows of both engines' operand buffers.
BANKS = {f"bank_{number}": Memory.bank(number) for number in range(M.BANKS)}
OPERAND_BUFFERS = "operand_buffer"
TARGET = 0.70  # of the shell's user budget: the share up to which routing at 200 MHz is expected to be easy


@dataclass(frozen=True)
class OnChipMemory:
    """Identical memories of the machine."""

    name: str  # variable in the source
    count: int  # number of memories
    # words, bits: depth and width of each
    words: int
    bits: int
    kind: str  # "uram", "bram", "lutram"
    # loads, stores: loads and stores of each in a cycle
    loads: int
    stores: int

    @property
    def bytes(self) -> int:
        return self.count * self.words * self.bits // 8

    @property
    def blocks(self) -> Blocks:
        return blocks(self.kind, self.bits, self.words).times(self.count)


@dataclass(frozen=True)
class MachineRecord:
    """The result of the analysis of the machine's source."""

    sources: str  # SHA-256 of the synthesis source
    clock_mhz: float  # clock of the schedule
    # interval, stages, depth: cycles, as in `bttlab_hardware.Schedule`
    interval: int
    stages: int
    depth: int
    violations: int
    units: dict[str, dict[str, int]]  # number of operators of each unit, by kind
    memories: tuple[OnChipMemory, ...]

    @property
    def is_current(self) -> bool:
        """True if it was made from the present source."""
        return self.sources == source_digest()

    def share_of(self, unit: str, resource: str) -> float:
        """Return a unit's share of the "dsps", "lookup_tables" or "flip_flops" of all floating-point operators."""
        costs = {name: _cost(counts, resource) for name, counts in self.units.items()}
        return costs[unit] / (sum(costs.values()) or 1)


def _cost(counts: dict[str, int], resource: str) -> float:
    costs = read_data("operators")["operators"]
    return sum(count * costs[COSTS[kind]][resource]["value"] for kind, count in counts.items() if kind in COSTS)


def source_digest(folder: Path = SOURCE) -> str:
    """Return the SHA-256 of the synthesis source files in a folder."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.glob("*") if path.suffix in (".h", ".cpp")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def record_of(clock_mhz: float) -> Path:
    """Return the file with the record of the schedule for a clock: of 200 MHz or less, or a faster one."""
    return RECORD if clock_mhz <= M.CLOCK_MHZ else RECORD.with_stem(f"{RECORD.stem}_300")


@cache
def machine_record(clock_mhz: float = M.CLOCK_MHZ) -> MachineRecord:
    """Return the record of the committed source, scheduled for a clock."""
    values = json.loads(record_of(clock_mhz).read_text(encoding="utf-8"))
    memories = tuple(OnChipMemory(**memory) for memory in values["memories"])
    return MachineRecord(**{field.name: values[field.name] for field in fields(MachineRecord)} | {"memories": memories})
