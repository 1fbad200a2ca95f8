"""Runs of this checkout and of another one of the same user, for the browser."""

import os
import tempfile
import time
from pathlib import Path

import tiny_runs
from bttlab.experiments import RunIndex, read_run
from bttlab.experiments import index as index_module
from bttlab.experiments.record import now


def train_in_two_checkouts() -> None:
    """Train the run `ours` in this checkout, then `theirs` in another, which begins in a later second."""
    folder = Path(tempfile.mkdtemp())
    os.environ.pop("BTTLAB_RUNS", None)
    os.environ["XDG_DATA_HOME"] = str(folder / "data")
    corpus, root = tiny_runs.write_corpus(folder / "corpus"), index_module.ROOT
    try:
        for name, index_module.ROOT in (("ours", root), ("theirs", folder)):
            tiny_runs.train(folder / name, corpus)
            record = read_run(folder / name)
            RunIndex().add(record, folder / name)
            while now() == record.begun:
                time.sleep(0.05)
    finally:
        index_module.ROOT = root
