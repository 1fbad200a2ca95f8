"""The record of the schedule in data/u50/machine.json, which `bttlab.estimate` reads."""

import re
from collections import Counter
from dataclasses import asdict
from typing import Any

from bttlab.estimate.recorded import OnChipMemory, source_digest
from bttlab_hardware import latencies, solve
from bttlab_hardware.analyse import Schedule
from bttlab_hardware.census import Census

ON_CHIP = ("uram", "bram", "lutram")


def make_record(schedule: Schedule, census: Census) -> dict[str, Any]:
    return {
        "about": "What the analysis of hls_src/processor shows: modelled, not synthesised. Made by: make schedule "
        "SCHEDULE=--record",
        "sources": source_digest(),
        "clock_mhz": schedule.clock_mhz,
        "interval": schedule.interval,
        "stages": schedule.stages,
        "depth": schedule.depth,
        "violations": len(schedule.violations),
        "interval_with_one_cycle_more": intervals_with_one_cycle_more(schedule),
        "units": {unit: dict(sorted(counts.items())) for unit, counts in sorted(census.units.items())},
        "memories": [asdict(memory) for memory in memories_of(schedule)],
    }


def memories_of(schedule: Schedule) -> list[OnChipMemory]:
    """Return the loop's memories on the chip; memories of one array are counted together."""
    memories: Counter = Counter()
    for port in schedule.ports:
        memory = port.memory
        if memory.implementation in ON_CHIP:
            name = re.split(r"\[", memory.name)[0]
            memories[name, memory.words, memory.width, memory.implementation, port.loads, port.stores] += 1
    return [
        OnChipMemory(name, count, words, bits, kind, loads, stores)
        for (name, words, bits, kind, loads, stores), count in sorted(memories.items())
    ]


def intervals_with_one_cycle_more(schedule: Schedule) -> dict[str, int]:
    """Return the initiation interval with one more cycle of each operator, and of a load of each kind of memory."""

    def interval(name: str) -> int:
        with latencies.one_more(name):
            carried = solve.edges(schedule.graph, schedule.promised)
            clock = latencies.Clock(schedule.clock_mhz)
            found = solve.recurrences(schedule.graph, carried, clock, schedule.promised)
        return max([schedule.interval, *(recurrence.interval for recurrence in found)])

    return {name: interval(name) for name in (*latencies.read_latencies()["cycles"], *ON_CHIP)}
