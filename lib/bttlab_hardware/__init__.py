"""Analysis of the synthesis source: its schedule, its loop as Verilog, what Yosys counts.

clang compiles the source, LLVM inlines and unrolls it, and the analysis reads the machine's loop instruction by
instruction: which port each load and store uses, how long each dependence cycle takes, when each operator starts, and
how many operators there are. The only figures from pragmas are storage bindings, latencies of delay blocks, and the
distances of DEPENDENCE, which the analysis checks against the schedule.
"""

from dataclasses import replace
from pathlib import Path

from bttlab.estimate.recorded import SOURCE
from bttlab_hardware.analyse import Schedule, analyse
from bttlab_hardware.census import Census, census
from bttlab_hardware.resources import LoopResources, of_budget, resources

UNIT = "trainer.cpp"

__all__ = ["SOURCE", "UNIT", "Schedule", "analyse", "census", "resources", "schedule_of"]


def schedule_of(unit: Path) -> tuple[Schedule, Census, LoopResources]:
    """Return the schedule, the operators and the resources of the loop in a source."""
    schedule = analyse(unit)
    counted = census(schedule.graph.nodes, schedule.places)
    taken = resources(schedule, counted)
    return replace(schedule, violations=[*schedule.violations, *of_budget(taken)]), counted, taken
