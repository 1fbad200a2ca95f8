"""Widgets and figures of the notebooks."""

from bttlab.lab.compression import draw_truncation, spectra, truncate
from bttlab.lab.compression_explorer import CompressionExplorer
from bttlab.lab.dashboard import Dashboard
from bttlab.lab.exercise import check
from bttlab.lab.flow_explorer import FlowExplorer
from bttlab.lab.flow_figures import draw_costs, draw_optimum
from bttlab.lab.machine import check_machine
from bttlab.lab.plain_errors import show_sentences
from bttlab.lab.runs import RecordedRun
from bttlab.lab.setting import budget, corpus_here
from bttlab.lab.targets import baseline_targets, card_target
from bttlab.lab.watch import watch
from bttlab.lab.workload import Workload

__all__ = [
    "CompressionExplorer",
    "Dashboard",
    "FlowExplorer",
    "RecordedRun",
    "Workload",
    "baseline_targets",
    "budget",
    "card_target",
    "check",
    "check_machine",
    "corpus_here",
    "draw_costs",
    "draw_optimum",
    "draw_truncation",
    "spectra",
    "truncate",
    "watch",
]

show_sentences()
