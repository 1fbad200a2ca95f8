"""Record of `bttlab schedule` for the committed source, because the analysis needs clang and half a minute.

`bttlab schedule --record` writes `data/u50/machine.json` with the digest of the source. A test repeats the analysis and
compares.
"""

import hashlib
import json
import re
from collections import Counter
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from bttlab.card.constants import band, read_data
from bttlab.card.facts import ROOT
from bttlab.hardware.geometry import Blocks, blocks
from bttlab.hardware.resources import COSTS
from bttlab.hardware.sensitivity import sensitivity
from bttlab.util.errors import BttlabError
from bttlab.util.quantities import Quantity

SOURCE = ROOT / "hls_src" / "processor"
RECORD = ROOT / "data" / "u50" / "machine.json"
RESOURCES = {
    "lookup_tables": "LUTs",
    "flip_flops": "flip-flops",
    "dsps": "DSPs",
    "bram36": "BRAM36",
    "uram": "UltraRAM blocks",
}
TARGET = 0.70  # of the shell's user budget: the share up to which routing at 200 MHz is expected to be easy


@dataclass(frozen=True)
class OnChipMemory:
    """Identical memories of the machine.

    Attributes
    ----------
    name : str
        Variable in the source; "bank_7" is one memory, "operand_buffer" are all rows of both engines.
    count : int
        Number of memories.
    words, bits : int
        Depth and width of each.
    kind : {"uram", "bram", "lutram"}
    loads, stores : int
        Loads and stores of each in a cycle.
    """

    name: str
    count: int
    words: int
    bits: int
    kind: str
    loads: int
    stores: int

    @property
    def bytes(self) -> int:
        """Size of all of them in bytes."""
        return self.count * self.words * self.bits // 8

    @property
    def blocks(self) -> Blocks:
        """FPGA memory blocks of all of them."""
        return blocks(self.kind, self.bits, self.words).times(self.count)


@dataclass(frozen=True)
class MachineRecord:
    """The result of the analysis of the machine's source.

    Attributes
    ----------
    sources : str
        SHA-256 of the synthesis source.
    clock_mhz : float
        Clock of the schedule.
    interval, stages, depth : int
        Cycles, as in `bttlab.hardware.Schedule`.
    violations : int
    units : dict of str to dict of str to int
        Number of operators of each unit, by kind.
    memories : tuple of OnChipMemory
    parts : dict of str to dict of str to Quantity
        The loop's use of each of `RESOURCES`, by part.
    """

    sources: str
    clock_mhz: float
    interval: int
    stages: int
    depth: int
    violations: int
    units: dict[str, dict[str, int]]
    memories: tuple[OnChipMemory, ...]
    parts: dict[str, dict[str, Quantity]]

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


def make_record(schedule: Any, census: Any, resources: Any) -> dict[str, Any]:
    """Return the JSON record of an analysis of the present source.

    Parameters
    ----------
    schedule : bttlab.hardware.Schedule
    census : bttlab.hardware.census.Census
    resources : bttlab.hardware.resources.LoopResources
    """
    memories: Counter = Counter()
    for port in schedule.ports:
        memory = port.memory
        if memory.implementation in ("uram", "bram", "lutram"):
            name = re.split(r"\[", memory.name)[0]
            memories[name, memory.words, memory.width, memory.implementation, port.loads, port.stores] += 1
    return {
        "about": "What bttlab schedule shows of hls_src/processor: modelled, not synthesised. Made by: bttlab schedule "
        "--record",
        "sources": source_digest(),
        "clock_mhz": schedule.clock_mhz,
        "interval": schedule.interval,
        "stages": schedule.stages,
        "depth": schedule.depth,
        "violations": len(schedule.violations),
        "interval_with_one_cycle_more": sensitivity(schedule),
        "units": {unit: dict(sorted(counts.items())) for unit, counts in sorted(census.units.items())},
        "memories": [
            asdict(OnChipMemory(name, count, words, bits, kind, loads, stores))
            for (name, words, bits, kind, loads, stores), count in sorted(memories.items())
        ],
        "resources": {
            resource: {
                part: {"value": bands[resource].value, "low": bands[resource].low, "high": bands[resource].high}
                for part, bands in resources.parts.items()
                if resource in bands
            }
            for resource in RESOURCES
        },
    }


@cache
def machine_record() -> MachineRecord:
    """Return the record of the committed source.

    Raises
    ------
    BttlabError
        If it cannot be read.
    """
    try:
        values = json.loads(RECORD.read_text(encoding="utf-8"))
        return MachineRecord(
            *(values[name] for name in ("sources", "clock_mhz", "interval", "stages", "depth", "violations", "units")),
            tuple(OnChipMemory(**memory) for memory in values["memories"]),
            {
                resource: {part: band(b["value"], resource, b["low"], b["high"]) for part, b in parts.items()}
                for resource, parts in values["resources"].items()
            },
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BttlabError(f"{RECORD} cannot be read ({error}); write it again with: bttlab schedule --record") from None
