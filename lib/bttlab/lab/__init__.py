"""Widgets and figures of the notebooks; those of the annexes are names of this package, too."""

from typing import Any

from bttlab.annexes import brought
from bttlab.lab.compression import draw_truncation, spectra, truncate
from bttlab.lab.compression_explorer import CompressionExplorer
from bttlab.lab.cycle_figures import draw_cycles, draw_schedule
from bttlab.lab.dashboard import Dashboard
from bttlab.lab.design import Design
from bttlab.lab.design_explorer import DesignExplorer
from bttlab.lab.exercise import check
from bttlab.lab.flow_explorer import FlowExplorer
from bttlab.lab.flow_figures import draw_costs, draw_optimum
from bttlab.lab.gpu_beside import gpu_over_card
from bttlab.lab.memory_figures import chip_bytes, draw_banks, draw_bytes, draw_energy, torch_bytes
from bttlab.lab.own_flow import (
    check_flow,
    compare_flows,
    flow_cycles,
    flow_is_refused,
    flow_is_right,
    show_program,
)
from bttlab.lab.plain_errors import show_sentences
from bttlab.lab.run_browser import RunBrowser
from bttlab.lab.runs import RecordedRun
from bttlab.lab.setting import budget, corpus_here
from bttlab.lab.targets import baseline_targets, card_target, modelled_targets
from bttlab.lab.watch import watch
from bttlab.lab.workload import Workload

__all__ = [
    "CompressionExplorer",
    "Dashboard",
    "Design",
    "DesignExplorer",
    "FlowExplorer",
    "RecordedRun",
    "RunBrowser",
    "Workload",
    "baseline_targets",
    "budget",
    "card_target",
    "check",
    "check_flow",
    "chip_bytes",
    "compare_flows",
    "corpus_here",
    "draw_banks",
    "draw_bytes",
    "draw_costs",
    "draw_cycles",
    "draw_energy",
    "draw_optimum",
    "draw_schedule",
    "draw_truncation",
    "flow_cycles",
    "flow_is_refused",
    "flow_is_right",
    "gpu_over_card",
    "modelled_targets",
    "show_program",
    "spectra",
    "torch_bytes",
    "truncate",
    "watch",
]

show_sentences()


def __getattr__(name: str) -> Any:
    """Return a view of an annex."""
    views = {} if name.startswith("_") else brought("views")
    if name not in views:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = views[name].load()
    return globals()[name]
