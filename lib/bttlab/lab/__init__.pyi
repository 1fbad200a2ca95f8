import typing

from .ask import Ask as Ask
from .comparison import Savings as Savings
from .comparison import draw_energy_to_quality as draw_energy_to_quality
from .comparison import energy_to_quality as energy_to_quality
from .comparison import gpu_over_card as gpu_over_card
from .comparison import ratio_in_words as ratio_in_words
from .compression import CompressionExplorer as CompressionExplorer
from .compression import draw_truncation as draw_truncation
from .compression import spectra as spectra
from .compression import truncate as truncate
from .cycle_figures import draw_cycles as draw_cycles
from .cycle_figures import draw_schedule as draw_schedule
from .dashboard import Dashboard as Dashboard
from .dashboard_runs import RecordedRun as RecordedRun
from .dashboard_targets import baseline_targets as baseline_targets
from .dashboard_targets import card_and_gpu_target as card_and_gpu_target
from .dashboard_targets import card_target as card_target
from .design_explorer import Design as Design
from .design_explorer import DesignExplorer as DesignExplorer
from .expected import expected_scores as expected_scores
from .flow_check import check_flow as check_flow
from .flow_check import compare_flows as compare_flows
from .flow_check import compare_lengths as compare_lengths
from .flow_check import flow_cycles as flow_cycles
from .flow_check import show_program as show_program
from .flow_explorer import FlowExplorer as FlowExplorer
from .flow_figures import draw_costs as draw_costs
from .flow_figures import draw_optimum as draw_optimum
from .inside import InsideExplorer as InsideExplorer
from .live_loss import watch as watch
from .memory_figures import chip_bytes as chip_bytes
from .memory_figures import draw_banks as draw_banks
from .memory_figures import draw_bytes as draw_bytes
from .memory_figures import draw_energy as draw_energy
from .memory_figures import torch_bytes as torch_bytes
from .race_figure import draw_race as draw_race
from .race_figure import watch_race as watch_race
from .report_figures import draw_report as draw_report
from .run_browser import RunBrowser as RunBrowser
from .sweep_view import SweepView as SweepView
from .teach import Teach as Teach
from .workload import Workload as Workload
from .workload import budget as budget
from .workload import corpus_here as corpus_here

def __getattr__(name: str) -> typing.Any: ...  # of plugins
