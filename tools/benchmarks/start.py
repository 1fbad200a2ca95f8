"""Cold start: from a fresh process to the first training step, and from a fresh kernel to notebook 03's first point."""

import json
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.result import Result, Table, describe_runs, rounded, time_ratios, time_rows
from benchmarks.turns import HOW, interleave, spread
from bttlab.util.errors import BttlabError
from bttlab.util.places import ROOT
from bttlab.util.quantities import column_metadata

OURS = "emulated U50"
CONTENDERS = (OURS, "PyTorch BTT", "PyTorch dense")
NOTEBOOK_FILE = ROOT / "notebooks" / "03_train_on_the_u50.ipynb"
NOTEBOOK = "notebook 03, to the first point"
STARTS_TRAINING = "run = trainer.start("  # the line of the notebook
FIRST_POINT = """
import time
from bttlab.lab.charts import new_figure, to_png
from bttlab.lab.live_loss import draw_loss
while not len(run.losses):
    time.sleep(0.001)
figure = new_figure(7.5, 3.2)
draw_loss(figure.subplots(), run.losses, run.total)
to_png(figure)
"""


def measure(
    corpus: str = "atis",
    encoders: int = 2,
    rounds: int = 3,
    notebook: Path | None = NOTEBOOK_FILE,
) -> Result:
    """Measure fresh processes, and a notebook in quick mode up to its first point on the curve."""
    stages: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS}

    def process(name: str) -> None:
        command = [sys.executable, str(Path(__file__).with_name("cold.py")), name, corpus, str(encoders)]
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
            "time": column_metadata(
                "ms", "measured", f"whole process, or kernel start and cells up to the first point drawn; {HOW}"
            ),
            "stages": column_metadata(
                "ms", "measured", "time.perf_counter within the process; files are in the system's cache"
            ),
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
        cells = [describe_runs(row["stages"][stage]) if stage in row["stages"] else "-" for stage in stages]
        lines.append([row["contender"], *cells, describe_runs(row["time"])])
    return [Table("Cold start in ms (measured)", ["", *stages, "whole"], lines)]
