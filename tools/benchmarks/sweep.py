"""Measure the overhead of a sweep, and of a killed worker: two workers, against the trials alone."""

import math
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from distributed import Client
from distributed.diagnostics.plugin import WorkerPlugin

from benchmarks.result import Result, Table
from benchmarks.turns import threads_of_torch
from bttlab.runs import CheckpointStore, start_run, tensors_digest
from bttlab.runs.devices import open_trainer
from bttlab.sweep import Progress, Sweep, SweepSpec, open_cluster
from bttlab.sweep.trials import Trial, TrialMaker
from bttlab.util.errors import BttlabError
from bttlab.util.quantities import column_metadata, in_digits

WORKERS = 2
CHUNK_SECONDS = 5.0
VARY = {"linear_rank": [8, 12], "learning_rate": [1e-4, 3e-4, 1e-3, 2e-3], "seed": [0, 1, 2]}
UNDISTURBED, KILLED = "two workers", "two workers, one killed"


class ChunkLog(WorkerPlugin):
    """Log of the beginning and end of each chunk on this machine's workers.

    Parameters
    ----------
    folder : path
        Gets a file for each worker's process.
    """

    def __init__(self, folder: Path):
        self.folder = Path(folder)

    def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
        """Note it: a chunk's task is named after the function that it calls."""
        if "executing" in (start, finish) and str(key).startswith("train_chunk"):
            with (self.folder / f"{os.getpid()}.log").open("a") as file:
                file.write(f"{key}\t{'begin' if finish == 'executing' else 'end'}\t{time.time()}\n")

    def read(self) -> dict[int, list[tuple[str, str, float]]]:
        """Return (task, "begin" or "end", seconds since 1970) of each process, in their order."""
        events = {}
        for path in self.folder.glob("*.log"):
            lines = [line.split("\t") for line in path.read_text().splitlines()]
            events[int(path.stem)] = [(key, event, float(seconds)) for key, event, seconds in lines]
        return events


def measure(corpus: str = "atis", samples: int = 100, vary: dict[str, list] | None = None) -> Result:
    """Train every trial alone, then in a sweep on two workers, then in a sweep with a killed worker.

    Parameters
    ----------
    corpus : str
        Name or path.
    samples : int
        Of a trial's epoch.
    vary : dict of str to list, optional
        By default 24 trials: rank x learning rate x seed, on the emulated U50.

    Raises
    ------
    BttlabError
        If a trial of a sweep does not end with the bits of the same trial alone.
    """
    fixed = {"data": corpus, "samples": samples, "optimizer": "adamw"}
    spec = SweepSpec("bench", vary or VARY, fixed, chunk_seconds=CHUNK_SECONDS)
    trials = TrialMaker(spec).all()
    with TemporaryDirectory(prefix="bttlab-bench-") as name:
        folder = Path(name)
        before = os.environ.get("BTTLAB_RUNS")
        os.environ["BTTLAB_RUNS"] = str(folder / "runs")  # the user's index is to know nothing of these
        try:
            expected, alone = _alone(trials, folder / "alone")
            rows = [{"contender": "one after the other", "wall": alone}]
            rows.append(_swept(spec, folder / UNDISTURBED, expected, killed=False))
            rows.append(_swept(spec, folder / KILLED, expected, killed=True))
        finally:
            os.environ.pop("BTTLAB_RUNS") if before is None else os.environ.update(BTTLAB_RUNS=before)
    clock = "time.perf_counter on this host"
    return Result(
        settings={"data": corpus, "samples": samples, "trials": len(trials), "workers": WORKERS} | {"vary": spec.vary},
        figures={
            "wall": column_metadata("s", "measured", f"{clock}, from a cluster that is up to the last trial's record"),
            "start": column_metadata("s", "measured", f"{clock}, until the workers are up"),
            "busy": column_metadata("s", "measured", f"{clock}, of each chunk on its worker, summed"),
            "ratio": column_metadata("1", "measured", f"wall over busy / {WORKERS}"),
            "again": column_metadata("1", "measured", "chunks that a worker began and another did again"),
            "lost": column_metadata("s", "measured", "time.time on this host, from that chunk's beginning to the kill"),
            "equal": column_metadata("1", "measured", "trials whose parameters have the bits of the same trial alone"),
        },
        rows=rows,
        ratios={},
    )


def _alone(trials: list[Trial], folder: Path) -> tuple[dict[str, str], float]:
    """Train each trial in this process, in one piece; returns the digests of their parameters, and the seconds."""
    digests, begin = {}, time.perf_counter()
    with threads_of_torch(1):
        for trial in trials:
            opened = open_trainer(trial.settings.config, trial.settings.device)
            run = start_run(folder / trial.id, trial.settings, trial.corpus)
            digests[trial.id] = run.train(opened.trainer, opened.device).parameters_sha256
    return digests, time.perf_counter() - begin


def _swept(spec: SweepSpec, folder: Path, expected: dict[str, str], killed: bool) -> dict[str, Any]:
    logs = folder.with_name(f"{folder.name} log")
    logs.mkdir()
    log, sweep, begin = ChunkLog(logs), Sweep(spec, folder), time.perf_counter()
    with open_cluster(workers=WORKERS) as client:
        start = time.perf_counter() - begin
        client.register_plugin(log)
        killer = _Killer(client, log)
        begin = time.perf_counter()
        progress = sweep.run(client, killer.look if killed else lambda progress: None)
        wall = time.perf_counter() - begin
    for id, digest in expected.items():
        if tensors_digest(CheckpointStore(folder / id).load()[0].parameters) != digest:
            raise BttlabError(f"trial {id} has other parameters in the sweep than alone")
    row = {"wall": wall, "start": start, "busy": progress.busy_seconds, "equal": len(expected)}
    row["ratio"] = wall / (progress.busy_seconds / WORKERS)
    if killed:
        row |= {"again": chunks_again(log.read()), "lost": killer.lost}
    return {"contender": UNDISTURBED if not killed else KILLED, **row}


class _Killer:
    """Kills a worker once, in the middle of a chunk, when a third of the trials have ended."""

    def __init__(self, client: Client, log: ChunkLog):
        self._client, self._log, self.lost = client, log, math.nan

    def look(self, progress: Progress) -> None:
        if not math.isnan(self.lost) or len(progress.records) < progress.total / 3:
            return
        for process, events in self._log.read().items():
            _, event, seconds = events[-1]
            if event == "begin" and time.time() - seconds > CHUNK_SECONDS / 4:
                os.kill(process, signal.SIGKILL)
                self.lost = time.time() - seconds
                return


def chunks_again(logs: dict[int, list[tuple[str, str, float]]]) -> int:
    """Return how many chunks were begun more than once, given what `ChunkLog.read` returns."""
    begun = [key for events in logs.values() for key, event, _ in events if event == "begin"]
    return len(begun) - len(set(begun))


def tables(result: dict[str, Any]) -> list[Table]:
    """Return what each way took."""
    columns: dict[str, Callable[[float], str]] = {
        "wall": in_digits,
        "start": in_digits,
        "busy": in_digits,
        "ratio": "{:.3f}".format,
        "again": str,
        "lost": in_digits,
        "equal": str,
    }
    headers = ["", "wall (s)", "start (s)", "busy (s)", "wall / (busy / 2)", "chunks again", "lost (s)", "equal trials"]
    rows = [
        [row["contender"], *(show(row[name]) if name in row else "" for name, show in columns.items())]
        for row in result["rows"]
    ]
    settings = result["settings"]
    title = f"A sweep of {settings['trials']} trials of {settings['samples']} samples of {settings['data']} (measured)"
    return [Table(title, headers, rows)]
