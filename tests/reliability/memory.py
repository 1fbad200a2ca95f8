"""Trainings and live cells again and again in one process, as in a notebook that stays open: its memory stays flat."""

import contextlib
import gc
import io
import os
import shutil
import tempfile
import threading
from pathlib import Path

import numpy as np
import psutil

from reliability.outcome import Outcome, attempts

MOST_GROWTH = 20.0  # MB, from a quarter of the trainings, or cells, on
CELLS, SAMPLES = 25, 2000


def trial(count: int) -> Outcome:
    """Train `count` times on the emulated card by the command line's function; then watch 25 live losses."""
    from bttlab.cli import main
    from tiny_runs import write_corpus

    failures, sizes = [], []
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stderr(io.StringIO()):
        scratch = Path(name)
        corpus = write_corpus(scratch / "corpus")
        command = ["train", "--data", str(corpus), "--device", "emulated", "--encoders", "1", "--samples", "12"]
        for number in attempts(count):
            with contextlib.redirect_stdout(io.StringIO()):
                if code := main([*command, "--out", str(scratch / "run")]):
                    failures.append(f"training {number}: exit code {code}")
            shutil.rmtree(scratch / "run", ignore_errors=True)
            sizes.append(_megabytes())
        with contextlib.redirect_stdout(io.StringIO()):
            cells = [_live_cell() for _ in range(CELLS)]
    figures = {}
    for what, each in (("trainings", sizes), ("live cells", cells)):
        growth = float(np.mean(each[-3:]) - np.mean(each[len(each) // 4 :][:3]))
        figures |= {
            f"{what} in one process": len(each),
            f"growth over the last three quarters of the {what}, MB (measured)": growth,
        }
        if growth > MOST_GROWTH:
            failures.append(f"{what}: memory grew by {growth:.0f} MB")
    return Outcome(len(sizes) + len(cells), failures, figures)


def _live_cell() -> float:
    """Watch a run in a background thread, as a cell of a notebook does; return the process's memory."""
    import matplotlib.pyplot as plt

    from bttlab.card.training_run import TrainingRun
    from bttlab.lab.live_loss import watch

    run = TrainingRun(SAMPLES, _losses, threading.Lock())
    run.begin()
    watch(run, "loss")
    plt.close("all")
    return _megabytes()


def _losses(part: slice) -> np.ndarray:
    return 1.0 + np.exp(-np.arange(part.start, part.stop, dtype=np.float32) / SAMPLES)


def _megabytes() -> float:
    gc.collect()
    return psutil.Process(os.getpid()).memory_info().rss / 1e6
