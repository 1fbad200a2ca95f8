"""The record of the schedule in data/u50/machine.json, which `bttlab.estimate` reads."""

import re
from collections import Counter
from dataclasses import asdict
from typing import Any

from bttlab.estimate.recorded import RESOURCES, OnChipMemory, source_digest
from bttlab_hardware.analyse import Schedule
from bttlab_hardware.census import Census
from bttlab_hardware.resources import LoopResources
from bttlab_hardware.sensitivity import sensitivity


def make_record(schedule: Schedule, census: Census, resources: LoopResources) -> dict[str, Any]:
    """Return the JSON record of an analysis of the present source."""
    memories: Counter = Counter()
    for port in schedule.ports:
        memory = port.memory
        if memory.implementation in ("uram", "bram", "lutram"):
            name = re.split(r"\[", memory.name)[0]
            memories[name, memory.words, memory.width, memory.implementation, port.loads, port.stores] += 1
    return {
        "about": "What the analysis of hls_src/processor shows: modelled, not synthesised. Made by: make schedule "
        "SCHEDULE=--record",
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
