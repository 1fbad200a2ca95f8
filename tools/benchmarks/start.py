"""What comes before training: from `bttlab train` to the first step and the first scores, over `import torch`."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.result import Result, Table, describe_runs, rounded, spread, time_ratios, time_rows
from benchmarks.turns import interleave
from bttlab.util.errors import BttlabError
from bttlab.util.quantities import column_metadata

TORCH = "import torch"
IMPORTED, FIRST_STEP, SCORES = "imported", "first step", "scores of dev"
FLOWS = ("bidirectional", "auto")
OVER = "compile auto over bidirectional"
HOW = "time.monotonic, from the start of a process; contenders in turn, median and quartiles over the rounds"
# Events of a training print their times, to a stdout that the command does not redirect.
TRAIN = """
import sys, time
from functools import partial
from bttlab.runs.plan import Callback
show = partial(print, file=sys.__stdout__, flush=True)
Callback.trained = lambda *_: show("first step", time.monotonic())
Callback.evaluated = lambda *_: show("scores of dev", time.monotonic())
from bttlab.cli import main
sys.exit(main(sys.argv[1:]))
"""
IMPORT = """
import time, torch
print("imported", time.monotonic())
"""
COMPILE = """
import sys, time
from bttlab.compiler.program import Options, compile
from bttlab.model import ModelConfig
begin = time.monotonic()
compile(ModelConfig(encoders=int(sys.argv[1])), Options(sys.argv[2]))
print("compiled", time.monotonic() - begin + float(sys.argv[3]))
"""


def measure(corpus: str = "airline", encoders: int = 2, rounds: int = 5) -> Result:
    """Measure processes: one that imports torch, trainings of a sample, and compilations without the cache on disk."""
    with tempfile.TemporaryDirectory() as folder:
        model = ("--encoders", str(encoders))
        train = (TRAIN, "train", *model, "--data", corpus, "--samples", "1", "--device", "emulated", "--json")
        kept, none = f"{folder}/programs", os.devnull
        contenders: dict[str, Callable[[], float]] = {TORCH: partial(_seconds, (IMPORT,), IMPORTED, none, folder)}
        for event in (FIRST_STEP, SCORES):
            contenders[f"{event}, program from disk"] = partial(_seconds, train, event, kept, folder)
        contenders[f"{FIRST_STEP}, program compiled"] = partial(_seconds, train, FIRST_STEP, none, folder)
        for flow in FLOWS:
            compiled = (COMPILE, str(encoders), flow)
            contenders[f"compile {flow}"] = partial(_seconds, compiled, "compiled", none, folder)
        seconds = interleave(contenders, rounds)
    ratios = time_ratios(f"{encoders}-ENC: ", seconds, TORCH)
    paper, auto = (seconds[f"compile {flow}"] for flow in FLOWS)
    ratios[f"{encoders}-ENC: {OVER}"] = rounded(spread(auto / paper))
    return Result(
        settings={"data": corpus, "encoders": encoders, "rounds": rounds},
        figures={"time": column_metadata("ms", "measured", HOW)},
        rows=time_rows({"encoders": encoders}, seconds),
        ratios=ratios,
        programs=[encoders],
    )


def _seconds(command: tuple[str, ...], event: str, programs: str, folder: str) -> float:
    """Run Python and return the seconds from the start of its process until it printed an event."""
    with tempfile.TemporaryDirectory(dir=folder) as run:
        code, *arguments = command
        begin = time.monotonic()
        arguments += [str(begin)] if event == "compiled" else [] if event == IMPORTED else ["--out", f"{run}/run"]
        environment = os.environ | {"BTTLAB_PROGRAMS": programs, "BTTLAB_RUNS": f"{run}/runs"}
        command = (sys.executable, "-c", code, *arguments)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BttlabError(f"{' '.join(arguments)} failed: {done.stderr.strip()}")
    times = [line.rpartition(" ") for line in done.stdout.splitlines() if line.startswith(event)]
    if not times:
        raise BttlabError(f"{' '.join(arguments)} did not reach the event {event!r}")
    return float(times[0][2]) - begin


def tables(result: dict[str, Any]) -> list[Table]:
    """Return the time of each contender, how many times that of `import torch` it is, and auto over bi-directional."""
    lines = []
    for row in result["rows"]:
        ratio = result["ratios"].get(f"{row['encoders']}-ENC: {row['contender']}")
        lines.append([row["contender"], describe_runs(row["time"]), describe_runs(ratio) if ratio else "1"])
    headers = ["until", "ms (measured)", f"times {TORCH}"]
    settings = result["settings"]
    if (over := result["ratios"].get(f"{settings['encoders']}-ENC: {OVER}")) is not None:  # records of before have none
        lines.append([f"{OVER}, times", "", describe_runs(over)])
    return [Table(f"Start of a training, {settings['encoders']}-ENC, {settings['data']}", headers, lines)]
