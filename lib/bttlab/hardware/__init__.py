"""Analysis of the synthesis source: `bttlab schedule`.

clang translates the source, LLVM inlines and unrolls it, and what is left of the machine's loop is read instruction by
instruction: which port each load and store asks, how long each way round the loop takes, when each operator starts,
how many operators there are. No figure is taken from a pragma but the distances that DEPENDENCE promises, and those are
held against the schedule.
"""

from dataclasses import replace
from pathlib import Path

from bttlab.hardware import report
from bttlab.hardware.analyse import Schedule, analyse
from bttlab.hardware.census import Census, census
from bttlab.hardware.resources import LoopResources, of_budget, resources
from bttlab.places import ROOT

SOURCE = ROOT / "hls_src" / "processor"
UNIT = "trainer.cpp"

__all__ = ["SOURCE", "UNIT", "Schedule", "analyse", "census", "report", "resources", "schedule_of"]


def schedule_of(unit: Path) -> tuple[Schedule, Census, LoopResources]:
    """Return schedule, operators and resources of the loop in a source."""
    schedule = analyse(unit)
    counted = census(schedule.graph.nodes, schedule.places)
    taken = resources(schedule, counted)
    return replace(schedule, violations=[*schedule.violations, *of_budget(taken)]), counted, taken
