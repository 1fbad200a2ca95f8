"""Widgets and figures of the notebooks; those of the annexes are names of this package, too."""

from typing import Any

from bttlab.annexes import brought
from bttlab.lab.plain_errors import show_sentences
from bttlab.lazy import names_of

_MODULES = {
    "card_queue": ("CardQueue",),
    "compression": ("draw_truncation", "spectra", "truncate"),
    "compression_explorer": ("CompressionExplorer",),
    "cycle_figures": ("draw_cycles", "draw_schedule"),
    "dashboard": ("Dashboard",),
    "design": ("Design",),
    "design_explorer": ("DesignExplorer",),
    "exercises": ("check", "engine_products", "grade"),
    "flow_explorer": ("FlowExplorer",),
    "flow_figures": ("draw_costs", "draw_optimum"),
    "gpu_beside": ("gpu_over_card",),
    "memory_figures": ("chip_bytes", "draw_banks", "draw_bytes", "draw_energy", "torch_bytes"),
    "own_flow": ("check_flow", "compare_flows", "flow_cycles", "flow_is_refused", "flow_is_right", "show_program"),
    "run_browser": ("RunBrowser",),
    "runs": ("RecordedRun",),
    "setting": ("budget", "corpus_here"),
    "targets": ("baseline_targets", "card_target", "modelled_targets"),
    "watching": ("watch",),
    "workload": ("Workload",),
}
_own = names_of(globals(), _MODULES)
__all__ = [
    "CardQueue",
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


def __getattr__(name: str) -> Any:
    """Return a name of the lab's modules, or a view that an annex brings."""
    views = {} if name.startswith("_") or name in __all__ else brought("views")
    if name not in views:
        return _own(name)
    globals()[name] = views[name].load()
    return globals()[name]
