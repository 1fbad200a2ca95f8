"""Measure `bttlab runs` over many runs, with the start of its process."""

import copy
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.result import Result, Table, describe_runs, rounded
from benchmarks.turns import HOW, interleave, spread
from bttlab.model import ModelConfig
from bttlab.runs import RunRecord
from bttlab.runs.metrics import SCORES
from bttlab.util.quantities import column_metadata, measured

RUNS = 2_000
COMMANDS = {
    "list the latest": ["list"],
    "list all": ["list", "--limit", "0"],
    "filter and sort": [
        "list",
        "--where",
        "linear_rank == 8 and learning_rate < 0.001",
        "--sort",
        "dev.frame_accuracy",
    ],
    "compare the best thirty": ["compare", "--sort", "dev.frame_accuracy"],
}


def measure(count: int = RUNS, rounds: int = 9) -> Result:
    """Fill a folder with runs as trainings leave them, and ask for them.

    Parameters
    ----------
    count : int
        Runs in the folder.
    rounds : int
    """
    with TemporaryDirectory() as folder:
        for run in _runs(count):
            (Path(folder) / run.id).mkdir()
            run.write(Path(folder) / run.id)
        seconds = interleave({name: _asked(folder, command) for name, command in COMMANDS.items()}, rounds)
    return Result(
        settings={"runs": count, "rounds": rounds},
        figures={"time": column_metadata("s", "measured", f"{HOW}; a process each")},
        rows=[{"contender": name, "time": rounded(spread(values))} for name, values in seconds.items()],
        ratios={},
    )


def _runs(count: int) -> Iterator[RunRecord]:
    draw = random.Random(0)
    model = ModelConfig().to_dict()
    figures = {f"{split}.{name}": measured(0.0, "1", "drawn") for split in ("dev", "test") for name in SCORES}
    for number in range(count):
        configuration = model | {
            "linear_rank": draw.choice([4, 8, 12, 16]),
            "optimizer": draw.choice(["sgd", "momentum", "adamw"]),
            "learning_rate": 10 ** draw.uniform(-4, -2),
            "seed": number,
        }
        run = RunRecord("training", f"trial {number}", configuration, "no device", id=f"{number:012x}")
        run.figures = copy.deepcopy(figures)
        for name in run.figures:
            run.figures[name]["value"] = draw.random()
        run.end("complete")
        yield run


def _asked(folder: str, command: list[str]) -> Callable[[], None]:
    def ask() -> None:
        subprocess.run(
            [sys.executable, "-m", "bttlab", "runs", *command],
            env=os.environ | {"BTTLAB_RUNS": folder},
            stdout=subprocess.DEVNULL,
            check=True,
        )

    return ask


def tables(result: dict[str, Any]) -> list[Table]:
    """Return the time of each command."""
    rows = [[row["contender"], describe_runs(row["time"])] for row in result["rows"]]
    title = f"bttlab runs over {result['settings']['runs']:,} runs"
    return [Table(title, ["command", "s (measured)"], rows)]
