"""Write the tables of published peaks of memory in docs/cost.md from data/cost: python tools/cost_page.py."""

import sys
from collections.abc import Sequence

from pages import filled, write_tables

from bttlab.baseline.gpus import find_gpu
from bttlab.util.places import ROOT
from bttlab_cost import others
from bttlab_cost.estimate import Estimator
from bttlab_cost.others import Peak

PAGE = ROOT / "docs" / "cost.md"
HEADER = ("run", "method", "GPUs", "batch x tokens", "published GB", "modelled GB", "ratio", "in the band")
# Projects of a table: runs with FlashAttention of more than a few thousand tokens a step, and what users report.
TABLES = {
    "memory fitted": ("fms-acceleration",),
    "memory held out": ("fms-acceleration-held-out", "fsdp-qlora", "unsloth", "torchtune", "reports"),
}


def table(projects: Sequence[str], estimator: Estimator) -> str:
    """Return a Markdown table of the published peaks of projects, beside the modelled ones with their band."""
    lines = [HEADER, ["---", "---", "---:", "---:", "---:", "---:", "---:", "---"]]
    for name in projects:
        project = next(one for one in others.projects() if one.project == name)
        lines += [_row(name, peak, estimator) for peak in project.peaks]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _row(project: str, peak: Peak, estimator: Estimator) -> list[str]:
    run = peak.run
    footprint = peak.footprint(estimator.calibration.memory_of(peak.config))
    low, middle, high = (value / 1e9 for value in footprint.band(peak.tokens, estimator.memory_factor(peak.config)))
    if run.peak_gb:
        published, ratio = f"{run.peak_gb:.1f}", f"{middle / run.peak_gb:.2f}"
        inside = low <= run.peak_gb <= high
    else:
        memory = run.memory_gb or find_gpu(run.gpu).memory_bytes / 1e9
        published, ratio = f"{'fits' if run.fits else 'out of'} {memory:.1f}", ""
        inside = low <= memory if run.fits else high > memory
        ratio = "right" if (middle <= memory) == run.fits else "wrong"
    address = run.source.split(";")[0].split(",")[0]
    source = f"[{run.model}]({address})" if run.source else f"{run.model}, {project.removesuffix('-held-out')}"
    return [
        source,
        run.method,
        str(run.gpus),
        f"{run.batch} x {peak.config.sequence_length:,}",
        published,
        f"{middle:.1f} ({low:.1f} to {high:.1f})",
        ratio,
        "yes" if inside else "**no**",
    ]


def fill(text: str) -> str:
    """Return the page with its tables."""
    estimator = Estimator()
    return filled(text, {name: table(projects, estimator) for name, projects in TABLES.items()}, PAGE.name)


def main(arguments: Sequence[str] | None = None) -> int:
    return write_tables(PAGE, fill, __doc__, arguments)


if __name__ == "__main__":
    sys.exit(main())
