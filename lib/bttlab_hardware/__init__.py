"""Analysis of the synthesis source: its schedule, its loop as Verilog, what Yosys counts.

clang compiles the source, LLVM inlines and unrolls it, and the analysis reads the machine's loop instruction by
instruction: which port each load and store uses, how long each dependence cycle takes, when each operator starts, and
how many operators there are. The only figures from pragmas are storage bindings, latencies of delay blocks, and the
distances of DEPENDENCE, which the analysis checks against the schedule.
"""

from dataclasses import replace
from pathlib import Path

from bttlab.estimate.recorded import SOURCE
from bttlab.estimate.resources import budget, memory_use, operator_use
from bttlab_hardware.analyse import Schedule, analyse
from bttlab_hardware.census import Census, census
from bttlab_hardware.record import memories_of
from bttlab_hardware.violations import Violation

UNIT = "trainer.cpp"

__all__ = ["SOURCE", "UNIT", "Schedule", "analyse", "census", "schedule_of"]


def schedule_of(unit: Path, clock_mhz: int | None = None) -> tuple[Schedule, Census]:
    """Return the schedule and the operators of the loop in a source, at a clock in MHz, by default the source's own."""
    schedule = analyse(unit, clock_mhz=clock_mhz)
    counted = census(schedule.graph.nodes, schedule.places)
    over = [
        Violation("budget", f"{resource}: the loop takes {taken.value:,.0f} of {budget(resource):,}")
        for use in (operator_use(counted.total, schedule.clock_mhz), memory_use(memories_of(schedule)))
        for resource, taken in use.items()
        if taken.value > budget(resource)
    ]
    return replace(schedule, violations=[*schedule.violations, *over]), counted
