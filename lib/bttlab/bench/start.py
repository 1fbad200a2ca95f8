"""Cold start: from a fresh process to the first training step, and from a fresh kernel to notebook 03's first point."""

import json
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from bttlab.bench.result import Result, Table, in_words, rounded, time_ratios, time_rows
from bttlab.bench.turns import HOW, interleave, spread
from bttlab.errors import BttlabError
from bttlab.figures import told

OURS = "emulated U50"
CONTENDERS = (OURS, "PyTorch BTT", "PyTorch dense")
NOTEBOOK = "notebook 03, to the first point"
STARTS_TRAINING = "run = trainer.start("  # the line of the notebook
FIRST_POINT = """
import time
from bttlab.lab.charts import loss_figure, to_png
while not len(run.losses):
    time.sleep(0.001)
to_png(loss_figure(run.losses, "first point"))
"""


def measure(corpus: str = "atis", encoders: int = 2, rounds: int = 3, notebook: Path | None = None) -> Result:
    """Measure fresh processes.

    Parameters
    ----------
    corpus : str
        Name or path.
    encoders, rounds : int
    notebook : Path, optional
        Also run this notebook, in quick mode, up to its first point on the curve.
    """
    stages: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS}

    def process(name: str) -> None:
        command = [sys.executable, "-m", "bttlab.bench.cold", name, corpus, str(encoders)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise BttlabError(f"{name} did not start: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}")
        stages[name].append(json.loads(done.stdout))

    work = {name: partial(process, name) for name in CONTENDERS}
    if notebook is not None:
        work[NOTEBOOK] = partial(_notebook, notebook)
    seconds = interleave(work, rounds)
    rows = time_rows({}, seconds)
    for row in rows:
        counted = stages.get(row["contender"], [])[1:]  # the first turn is not counted
        names = counted[0] if counted else ()
        row["stages"] = {stage: rounded(spread(np.array([1e3 * s[stage] for s in counted]))) for stage in names}
    processes = {name: seconds[name] for name in CONTENDERS}
    return Result(
        settings={"data": corpus, "encoders": encoders, "rounds": rounds},
        figures={
            "time": told(
                "ms", "measured", f"whole process, or kernel start and cells up to the first point drawn; {HOW}"
            ),
            "stages": told("ms", "measured", "time.perf_counter within the process; files are in the system's cache"),
        },
        rows=rows,
        ratios=time_ratios(f"{encoders}-ENC: ", processes, OURS),
    )


def _notebook(path: Path) -> float:
    """Start a kernel, run the cells up to the one that trains, and that one until a loss is drawn."""
    import nbclient
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    start = time.perf_counter()
    client = nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(path.parent)}})
    with client.setup_kernel():
        for index, cell in enumerate(notebook.cells):
            before, call, behind = cell.source.partition(STARTS_TRAINING)
            if cell.cell_type == "code" and call:
                cell.source = before + call + behind.split("\n")[0] + FIRST_POINT
                client.execute_cell(cell, index)
                return time.perf_counter() - start
            client.execute_cell(cell, index)
    raise BttlabError(f"{path.name} has no line {STARTS_TRAINING!r}: nothing trains there")


def tables(result: dict[str, Any]) -> list[Table]:
    """Return the stages of each contender and the whole."""
    rows = result["rows"]
    stages = list(dict.fromkeys(stage for row in rows for stage in row["stages"]))
    lines = []
    for row in rows:
        cells = [in_words(row["stages"][stage]) if stage in row["stages"] else "-" for stage in stages]
        lines.append([row["contender"], *cells, in_words(row["time"])])
    return [Table("Cold start in ms (measured)", ["", *stages, "whole"], lines)]


def draw(result: dict[str, Any]) -> Figure:
    """Draw the stages of each contender one after the other."""
    from bttlab.lab.charts import PALETTE, new_figure, style

    rows = result["rows"]
    drawing = new_figure(8.5, 1.4 + 0.5 * len(rows))
    axes = drawing.subplots()
    style(axes, "Cold start (measured)", "seconds", "")
    colours: dict[str, str] = {}
    for place, row in enumerate(rows):
        whole, done = row["time"]["median"] / 1e3, 0.0
        parts = {stage: values["median"] / 1e3 for stage, values in row["stages"].items()}
        rest = "interpreter: start, end" if parts else "kernel, cells and training"
        for stage, value in (parts | {rest: max(0.0, whole - sum(parts.values()))}).items():
            label = None if stage in colours else stage
            colour = colours.setdefault(stage, PALETTE[len(colours) % len(PALETTE)])
            axes.barh(place, value, 0.6, left=done, color=colour, label=label)
            done += value
        axes.annotate(f"{whole:.2f} s", (done, place), (5, 0), textcoords="offset points", va="center", fontsize=9)
    axes.set_yticks(range(len(rows)), [row["contender"] for row in rows])
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.05, 1))
    return drawing
