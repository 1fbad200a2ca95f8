"""Record of `bttlab schedule` for the committed source: the analysis takes clang and half a minute.

`data/u50/machine.json` is written by `bttlab schedule --record` and names the source that it was made from; a test
makes it again and compares.
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
from bttlab.errors import BttlabError
from bttlab.hardware.geometry import Blocks, blocks
from bttlab.hardware.resources import COSTS
from bttlab.hardware.sensitivity import sensitivity
from bttlab.quantities import Quantity

SOURCE = ROOT / "hls_src" / "processor"
RECORD = ROOT / "data" / "u50" / "machine.json"
RESOURCES = {
    "lookup_tables": "LUTs",
    "flip_flops": "flip-flops",
    "dsps": "DSPs",
    "bram36": "BRAM36",
    "uram": "UltraRAM blocks",
}
TARGET = 0.70  # of what the shell leaves: what routes at 200 MHz without a fight


@dataclass(frozen=True)
class OnChipMemory:
    """Memories of the machine that are alike.

    Attributes
    ----------
    name : str
        Of the variable in the source; "bank_7" is one memory, "operand_buffer" are all rows of both engines.
    count : int
        Memories.
    words, bits : int
        Of each.
    kind : {"uram", "bram", "lutram"}
    loads, stores : int
        Of each in a cycle.
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
        """Size of all of them."""
        return self.count * self.words * self.bits // 8

    @property
    def blocks(self) -> Blocks:
        """Resources that they take of the FPGA."""
        return blocks(self.kind, self.bits, self.words).times(self.count)


@dataclass(frozen=True)
class MachineRecord:
    """The machine as its source was shown to be.

    Attributes
    ----------
    sources : str
        SHA-256 of the synthesis source.
    clock_mhz : float
        For which the schedule was made.
    interval, stages, depth : int
        Cycles, as for `bttlab.hardware.Schedule`.
    violations : int
    units : dict of str to dict of str to int
        Operators of each unit, by kind.
    memories : tuple of OnChipMemory
    parts : dict of str to dict of str to Quantity
        What the loop takes of each of `RESOURCES`, by part.
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
        """True if it was made from the source that is here."""
        return self.sources == source_digest()

    def share_of(self, unit: str, resource: str) -> float:
        """Return the part of all floating-point operators' "dsps", "lookup_tables" or "flip_flops" that a unit has."""
        of = {name: _cost(counts, resource) for name, counts in self.units.items()}
        return of[unit] / (sum(of.values()) or 1)


def _cost(counts: dict[str, int], resource: str) -> float:
    costs = read_data("operators")["operators"]
    return sum(count * costs[COSTS[kind]][resource]["value"] for kind, count in counts.items() if kind in COSTS)


def source_digest(folder: Path = SOURCE) -> str:
    """Return the digest of the files that synthesis reads in a folder."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.glob("*") if path.suffix in (".h", ".cpp")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def make_record(schedule: Any, counted: Any, taken: Any, folder: Path = SOURCE) -> dict[str, Any]:
    """Return what is kept of an analysis.

    Parameters
    ----------
    schedule : bttlab.hardware.Schedule
    counted : bttlab.hardware.census.Census
    taken : bttlab.hardware.resources.LoopResources
    folder : Path
        Of the source.
    """
    alike: Counter = Counter()
    for port in schedule.ports:
        memory = port.memory
        if memory.implementation in ("uram", "bram", "lutram"):
            name = re.split(r"\[", memory.name)[0]
            alike[name, memory.words, memory.width, memory.implementation, port.loads, port.stores] += 1
    return {
        "about": "What bttlab schedule shows of hls_src/processor: modelled, not synthesised. Made by: bttlab schedule "
        "--record",
        "sources": source_digest(folder),
        "clock_mhz": schedule.clock_mhz,
        "interval": schedule.interval,
        "stages": schedule.stages,
        "depth": schedule.depth,
        "violations": len(schedule.violations),
        "interval_with_one_cycle_more": sensitivity(schedule),
        "units": {unit: dict(sorted(counts.items())) for unit, counts in sorted(counted.units.items())},
        "memories": [
            asdict(OnChipMemory(name, count, words, bits, kind, loads, stores))
            for (name, words, bits, kind, loads, stores), count in sorted(alike.items())
        ],
        "resources": {
            resource: {
                part: {"value": bands[resource].value, "low": bands[resource].low, "high": bands[resource].high}
                for part, bands in taken.parts.items()
                if resource in bands
            }
            for resource in RESOURCES
        },
    }


def from_dict(values: dict[str, Any]) -> MachineRecord:
    """Return what `make_record` gave."""
    return MachineRecord(
        *(values[name] for name in ("sources", "clock_mhz", "interval", "stages", "depth", "violations", "units")),
        tuple(OnChipMemory(**memory) for memory in values["memories"]),
        {
            resource: {part: band(b["value"], resource, b["low"], b["high"]) for part, b in parts.items()}
            for resource, parts in values["resources"].items()
        },
    )


@cache
def machine_record() -> MachineRecord:
    """Return the record of the committed source.

    Raises
    ------
    BttlabError
        If it cannot be read.
    """
    try:
        return from_dict(json.loads(RECORD.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BttlabError(f"{RECORD} cannot be read ({error}); make it again with: bttlab schedule --record") from None
