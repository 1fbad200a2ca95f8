"""Training killed with SIGKILL, in the middle of writing a checkpoint too, and resumed: the bits of an unbroken run."""

import random
import shutil
import tempfile
import time
from pathlib import Path

from bttlab.runs import CheckpointStore
from bttlab.util.files import is_draft
from reliability.outcome import Outcome, attempts
from reliability.training_process import Command, finish, new_run, train, unbroken, wait_for
from tiny_runs import metrics, write_corpus

EPOCHS = 12  # each with a checkpoint


def trial(count: int) -> Outcome:
    """Kill and resume `count` runs; every second kill waits until a checkpoint is being written."""
    draw = random.Random(0)
    failures, in_write, without = [], 0, 0
    with tempfile.TemporaryDirectory() as scratch:
        corpus = write_corpus(Path(scratch) / "corpus")
        new = new_run(corpus, EPOCHS)
        expected, duration, _ = unbroken(EPOCHS)
        for number in attempts(count):
            folder = Path(scratch) / f"run{number}"
            while not _killed(train(*new, folder), folder, draw.uniform(0, duration), number % 2 == 0, draw):
                shutil.rmtree(folder)  # it was faster than the unbroken one
                duration /= 2
            in_write += any(map(is_draft, folder.iterdir()))
            store = CheckpointStore(folder)
            begun = store.latest.exists() or store.previous.exists()
            without += not begun
            digest = finish(train("--resume", folder) if begun else train(*new, folder))
            if (digest, metrics(folder)) != expected:
                failures.append(f"kill {number}: parameters or metrics are not those of the unbroken run")
    figures = {
        "kills inside a write": in_write,
        "kills before the first checkpoint": without,
        "checkpoints of a run": EPOCHS + 1,
    }
    return Outcome(number + 1, failures, figures)


def _killed(process: Command, folder: Path, delay: float, in_write: bool, draw: random.Random) -> bool:
    """Kill a run some time after it made its folder; returns False if it had ended by then."""
    wait_for(process, folder.exists)
    time.sleep(delay)
    if in_write:
        wait_for(process, lambda: any(map(is_draft, folder.iterdir())))
        time.sleep(draw.uniform(0, 0.002))
    if process.poll() is None:
        process.kill()
    if process.returncode > 0:
        raise RuntimeError(f"training ended with exit code {process.returncode}")
    return process.returncode < 0
