"""Measure the overhead of a sweep, and of a killed worker: two workers, against the trials alone."""

import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from benchmarks.result import Result, Table
from benchmarks.turns import threads_of_torch
from bttlab.runs import CheckpointStore, start_run, tensors_digest
from bttlab.runs.devices import open_trainer
from bttlab.runs.sweep import Progress, Sweep, SweepSpec, open_executor
from bttlab.runs.sweep.trials import TrialMaker
from bttlab.util.errors import BttlabError
from bttlab.util.quantities import column_metadata, in_digits

WORKERS = 2
VARY = {"linear_rank": [8, 12], "learning_rate": [1e-4, 3e-4, 1e-3, 2e-3], "seed": [0, 1, 2]}


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
    spec = SweepSpec("bench", vary or VARY, fixed)
    with TemporaryDirectory(prefix="bttlab-bench-") as name:
        rows = [_swept(spec, Path(name) / "swept", killed=False), _swept(spec, Path(name) / "killed", killed=True)]
        digests, alone = _alone(spec, rows[0]["trials"], Path(name) / "alone")
    for row in rows:
        if row.pop("digests") != digests:
            raise BttlabError("a trial has other parameters in the sweep than alone")
        del row["trials"]
    clock = "time.perf_counter on this host"
    return Result(
        settings={"data": corpus, "samples": samples, "trials": len(digests), "workers": WORKERS, "vary": spec.vary},
        figures={"wall": column_metadata("s", "measured", f"{clock}, the start of the workers included")},
        rows=[{"contender": "one after the other", "wall": alone}, *rows],
        ratios={},
    )


def _alone(spec: SweepSpec, trials: list[dict[str, Any]], folder: Path) -> tuple[dict[str, str], float]:
    """Train each trial in this process; returns the digests of their parameters, and the seconds."""
    digests, maker, begin = {}, TrialMaker(spec), time.perf_counter()
    with threads_of_torch(1):
        for varied in trials:
            trial = maker.make(varied)
            opened = open_trainer(trial.settings.config, trial.settings.device)
            run = start_run(folder / trial.id, trial.settings, trial.corpus)
            digests[trial.id] = run.train(opened.trainer, opened.device).parameters_sha256
    return digests, time.perf_counter() - begin


def _swept(spec: SweepSpec, folder: Path, killed: bool) -> dict[str, Any]:
    sweep, begin, victims = Sweep(spec, folder), time.perf_counter(), []

    def kill(progress: Progress) -> None:
        """Kill a worker when a third of the trials have ended."""
        if killed and not victims and len(progress.records) >= progress.total / 3:
            victims.extend(psutil.Process(os.getpid()).children()[-1:])
            victims[0].kill()

    with open_executor(workers=WORKERS) as executor:
        progress = sweep.run(executor, kill)
    wall = time.perf_counter() - begin
    stored = {id: CheckpointStore(folder / id).load()[0] for id in progress.records}
    return {
        "contender": f"two workers{', one killed' if killed else ''}",
        "wall": wall,
        "digests": {id: tensors_digest(checkpoint.parameters) for id, checkpoint in stored.items()},
        "trials": [{key: record.configuration[key] for key in spec.vary} for record in progress.records.values()],
    }


def tables(result: dict[str, Any]) -> list[Table]:
    """Return what each way took."""
    rows = [[row["contender"], in_digits(row["wall"])] for row in result["rows"]]
    settings = result["settings"]
    title = f"A sweep of {settings['trials']} trials of {settings['samples']} samples of {settings['data']} (measured)"
    return [Table(title, ["", "wall (s)"], rows)]
