"""What comes before training: from `bttlab train` to the first step and the first scores, over `import torch`."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
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
OTHERS = ((4, 1), (6, 1), (2, 8), (4, 8), (6, 8))  # encoders and samples of an update of the other compilations
ROUNDS_OF_OTHERS = 2  # they take a minute
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
from bttlab.model import ModelConfig, Optimizer
encoders, batch, flow = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
begin = time.monotonic()
compile(ModelConfig(encoders=encoders), Options(flow, Optimizer(batch_size=batch)))
print("compiled", time.monotonic() - begin + float(sys.argv[4]))
"""


def measure(
    corpus: str = "airline", encoders: int = 2, rounds: int = 5, others: Sequence[tuple[int, int]] = OTHERS
) -> Result:
    """Measure processes: one that imports torch, trainings of a sample, and compilations without the cache on disk.

    `others`: encoders and samples of an update of the models that are only compiled, for the ratio of two flows.
    """
    with tempfile.TemporaryDirectory() as folder:
        model = ("--encoders", str(encoders))
        train = (TRAIN, "train", *model, "--data", corpus, "--samples", "1", "--device", "emulated", "--json")
        kept, none = f"{folder}/programs", os.devnull
        contenders: dict[str, Callable[[], float]] = {TORCH: partial(_seconds, (IMPORT,), IMPORTED, none, folder)}
        for event in (FIRST_STEP, SCORES):
            contenders[f"{event}, program from disk"] = partial(_seconds, train, event, kept, folder)
        contenders[f"{FIRST_STEP}, program compiled"] = partial(_seconds, train, FIRST_STEP, none, folder)

        def compilations(size: int, batch: int) -> dict[str, Callable[[], float]]:
            commands = {flow: (COMPILE, str(size), str(batch), flow) for flow in FLOWS}
            return {f"compile {of}": partial(_seconds, run, "compiled", none, folder) for of, run in commands.items()}

        seconds = interleave(contenders | compilations(encoders, 1), rounds)
        compiled, few = {_over(encoders, 1): seconds}, min(rounds, ROUNDS_OF_OTHERS)
        for size, batch in others:
            compiled[_over(size, batch)] = interleave(compilations(size, batch), few)
    ratios = time_ratios(f"{encoders}-ENC: ", seconds, TORCH)
    for case, of in compiled.items():
        paper, auto = (of[f"compile {flow}"] for flow in FLOWS)
        ratios[case] = rounded(spread(auto / paper))
    return Result(
        settings={"data": corpus, "encoders": encoders, "rounds": rounds, "rounds_of_others": few},
        figures={"time": column_metadata("ms", "measured", HOW)},
        rows=time_rows({"encoders": encoders}, seconds),
        ratios=ratios,
        programs=sorted({encoders, *(size for size, _ in others)}),
    )


def _over(encoders: int, batch: int) -> str:
    """Return the name of the ratio of two flows' compilations."""
    return f"{encoders}-ENC{f', updates of {batch}' if batch > 1 else ''}: {OVER}"


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
    """Return the time of each contender, how many times that of `import torch` it is, and auto over bi-directional.

    Earlier records have the last of one model alone, or of none.
    """
    lines = []
    for row in result["rows"]:
        ratio = result["ratios"].get(f"{row['encoders']}-ENC: {row['contender']}")
        lines.append([row["contender"], describe_runs(row["time"]), describe_runs(ratio) if ratio else "1"])
    headers = ["until", "ms (measured)", f"times {TORCH}"]
    settings = result["settings"]
    for case, over in result["ratios"].items():
        model, _, what = case.partition(": ")
        if what == OVER:
            of = "" if model == f"{settings['encoders']}-ENC" else f", {model}"
            lines.append([f"{OVER}, times{of}", "", describe_runs(over)])
    return [Table(f"Start of a training, {settings['encoders']}-ENC, {settings['data']}", headers, lines)]
