"""What Vitis HLS made of the kernel (csynth.xml), beside what the analysis of its source says.

The elements are those of the synthesis report that AMD's UG1399 describes. Nothing here has seen a report of this
kernel yet: nobody has synthesised it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from bttlab.card.constants import Band
from bttlab.card.kernel import TRAINER_KERNEL
from bttlab.errors import BttlabError
from bttlab.estimate.recorded import RESOURCES, MachineRecord
from bttlab.estimate.resources import resources
from bttlab.files import read_regular

MOST_BYTES = 64 << 20
LOOP = "Cycles"  # the machine's loop, by its label in hls_src/processor/machine.h
# Elements of AreaEstimates/Resources, and how many of them are one of ours.
COUNTS = {
    "lookup_tables": ("LUT", 1),
    "flip_flops": ("FF", 1),
    "dsps": ("DSP", 1),
    "bram36": ("BRAM_18K", 2),
    "uram": ("URAM", 1),
}


@dataclass(frozen=True)
class Synthesis:
    """What a report says of the kernel.

    Attributes
    ----------
    version : str
        Of the tool.
    period, estimated_period : float
        Clock that was asked for, and that was reached, in ns.
    interval, depth : int
        Of the machine's loop.
    resources : dict of str to float
        Of the kernel, by the names of `RESOURCES`.
    """

    version: str
    period: float
    estimated_period: float
    interval: int
    depth: int
    resources: dict[str, float]


@dataclass(frozen=True)
class Row:
    """A figure of both.

    Attributes
    ----------
    name : str
    modelled : Band
    synthesised : float
    agrees : bool
        Whether what Vitis made lies within what the model says; for a clock and a depth: is no worse.
    """

    name: str
    modelled: Band
    synthesised: float
    agrees: bool


def read_csynth(path: Path) -> Synthesis:
    """Read a report.

    Parameters
    ----------
    path : Path
        csynth.xml, of the kernel `trainer`.

    Raises
    ------
    BttlabError
        If it cannot be read, is no such report, or is another kernel's.
    """
    try:
        root = ElementTree.fromstring(read_regular(path, MOST_BYTES))
    except OSError as error:
        raise BttlabError(f"{path}: {error.strerror}; make -C hls_src report leaves a csynth.xml") from None
    except ElementTree.ParseError as error:
        raise BttlabError(f"{path} is no XML ({error}); give the csynth.xml of the kernel trainer") from None
    top = _text(root, path, "UserAssignments/TopModelName")
    if top != TRAINER_KERNEL.name:
        raise BttlabError(f"{path} is of the kernel {top!r}: give that of {TRAINER_KERNEL.name}")
    resources = {}
    for name, (element, each) in COUNTS.items():
        resources[name] = _number(root, path, f"AreaEstimates/Resources/{element}") / each
    interval, depth = _loop(root, path)
    return Synthesis(
        _text(root, path, "ReportVersion/Version"),
        _number(root, path, "UserAssignments/TargetClockPeriod"),
        _number(root, path, "PerformanceEstimates/SummaryOfTimingAnalysis/EstimatedClockPeriod"),
        interval,
        depth,
        resources,
    )


def _loop(root: ElementTree.Element, path: Path) -> tuple[int, int]:
    """Interval and depth of the machine's loop: in the kernel, or in a module that it was moved to."""
    for loops in root.iter("SummaryOfLoopLatency"):
        for loop in loops.iter():
            named = {loop.tag, loop.get("name"), (loop.findtext("Name") or "").strip()}
            if LOOP in named and loop.find("PipelineII") is not None:
                return int(_number(loop, path, "PipelineII")), int(_number(loop, path, "PipelineDepth"))
    raise BttlabError(f"{path} has no pipelined loop {LOOP}: the machine's loop was not pipelined, or not found")


def _text(element: ElementTree.Element, path: Path, way: str) -> str:
    text = (element.findtext(way) or "").strip()
    if not text:
        raise BttlabError(f"{path} has no {way}: it is no csynth.xml of Vitis HLS 2022.2 or later")
    return text


def _number(element: ElementTree.Element, path: Path, way: str) -> float:
    text = _text(element, path, way)
    try:
        return float(text)
    except ValueError:
        raise BttlabError(f"{path}: {way} is {text!r}, no number") from None


def compare(record: MachineRecord, synthesis: Synthesis) -> list[Row]:
    """Return both, figure by figure.

    Parameters
    ----------
    record : MachineRecord
    synthesis : Synthesis
    """

    def exactly(value: float, unit: str) -> Band:
        return Band(value, value, value, unit)

    rows = [
        Row("interval", exactly(record.interval, "cycles"), synthesis.interval, synthesis.interval == record.interval),
        Row("depth", exactly(record.stages, "cycles"), synthesis.depth, synthesis.depth <= record.stages),
        Row(
            "clock",
            exactly(1e3 / synthesis.period, "MHz"),
            1e3 / synthesis.estimated_period,
            synthesis.estimated_period <= synthesis.period,
        ),
    ]
    taken = resources(record)
    for resource, name in RESOURCES.items():
        band, made = taken.total(resource), synthesis.resources[resource]
        rows.append(Row(name, band, made, band.low <= made <= band.high))
    return rows


def to_dict(rows: list[Row], synthesis: Synthesis) -> dict[str, Any]:
    """Return what --json prints."""
    return {
        "version": synthesis.version,
        "agrees": all(row.agrees for row in rows),
        "figures": [
            {
                "name": row.name,
                "modelled": row.modelled.to_dict(),
                "synthesised": {"value": row.synthesised, "unit": row.modelled.unit, "provenance": "Vitis HLS"},
                "agrees": row.agrees,
            }
            for row in rows
        ],
    }


def to_text(rows: list[Row], synthesis: Synthesis) -> Any:
    """Return a table for people."""
    from rich.table import Table

    table = Table(
        title=f"Kernel trainer: Vitis HLS {synthesis.version} beside the model",
        caption="modelled by bttlab schedule, ports added; synthesised: csynth.xml's estimates, before the link",
    )
    for column in ("", "modelled", "low to high", "synthesised", ""):
        table.add_column(column, justify="right" if table.columns else "left")
    for row in rows:
        band = row.modelled
        width = f"{band.low:,.0f} to {band.high:,.0f}" if band.low < band.high else ""
        differs = "" if row.agrees else "differs"
        table.add_row(row.name, f"{band.mid:,.0f}", width, f"{row.synthesised:,.0f}", differs)
    return table
