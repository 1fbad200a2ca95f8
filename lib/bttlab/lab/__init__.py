"""Widgets and figures of the notebooks."""

from bttlab.lab.compression import draw_truncation, spectra, truncate
from bttlab.lab.compression_explorer import CompressionExplorer
from bttlab.lab.cost_explorer import CostExplorer
from bttlab.lab.cost_figures import draw_breakdown, draw_load
from bttlab.lab.cycle_figures import draw_cycles, draw_schedule
from bttlab.lab.dashboard import Dashboard
from bttlab.lab.design import Design
from bttlab.lab.design_explorer import DesignExplorer
from bttlab.lab.exercises import check, engine_products, grade
from bttlab.lab.finetuning_figures import (
    draw_accuracy,
    draw_largest_batches,
    draw_published_load,
    draw_ranking,
    draw_stages,
    draw_throughput,
    draw_utilisation,
)
from bttlab.lab.flow_explorer import FlowExplorer
from bttlab.lab.flow_figures import draw_costs, draw_optimum
from bttlab.lab.gpu_beside import gpu_over_card
from bttlab.lab.machine import check_machine
from bttlab.lab.memory_figures import chip_bytes, draw_banks, draw_bytes, draw_energy, torch_bytes
from bttlab.lab.method_figures import draw_results, draw_scatter
from bttlab.lab.methods_lab import MethodsLab
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
    "CostExplorer",
    "Dashboard",
    "Design",
    "DesignExplorer",
    "FlowExplorer",
    "MethodsLab",
    "RecordedRun",
    "RunBrowser",
    "Workload",
    "baseline_targets",
    "budget",
    "card_target",
    "check",
    "check_flow",
    "check_machine",
    "chip_bytes",
    "compare_flows",
    "corpus_here",
    "draw_accuracy",
    "draw_banks",
    "draw_breakdown",
    "draw_bytes",
    "draw_costs",
    "draw_cycles",
    "draw_energy",
    "draw_largest_batches",
    "draw_load",
    "draw_optimum",
    "draw_published_load",
    "draw_ranking",
    "draw_results",
    "draw_scatter",
    "draw_schedule",
    "draw_stages",
    "draw_throughput",
    "draw_truncation",
    "draw_utilisation",
    "engine_products",
    "flow_cycles",
    "flow_is_refused",
    "flow_is_right",
    "gpu_over_card",
    "grade",
    "modelled_targets",
    "show_program",
    "spectra",
    "torch_bytes",
    "truncate",
    "watch",
]

show_sentences()
