"""Training killed with SIGKILL, in the middle of writing a checkpoint too, and resumed: the bits of an unbroken run."""

import random
import shutil
import tempfile
import time
from pathlib import Path

from bttlab.runs import CheckpointStore
from bttlab.util.files import is_draft
from reliability.outcome import Outcome, attempts
from reliability.training_process import Command, Condition, finish, new_run, train, unbroken, wait_for
from tiny_runs import metrics, write_corpus

EPOCHS = 12  # each with a checkpoint


def trial(count: int) -> Outcome:
    """Kill and resume `count` runs: every fourth before its first checkpoint, every second inside a later write."""
    draw = random.Random(0)
    failures, in_write, without = [], 0, 0
    with tempfile.TemporaryDirectory() as scratch:
        new = new_run(write_corpus(Path(scratch) / "corpus"), EPOCHS)
        expected, since_folder, since_checkpoint = unbroken(EPOCHS)
        for number in attempts(count):
            folder = Path(scratch) / f"run{number}"
            store = CheckpointStore(folder)
            if number % 4:
                begun, delay = store.latest.exists, draw.uniform(0, since_checkpoint)
            else:
                begun, delay = folder.exists, draw.uniform(0, since_folder - since_checkpoint)
            while not _killed(train(*new, folder), begun, delay, folder if number % 2 else None, draw):
                shutil.rmtree(folder)  # it was faster than the unbroken one
                delay /= 2
            in_write += any(map(is_draft, folder.iterdir()))
            has_checkpoint = store.latest.exists() or store.previous.exists()
            without += not has_checkpoint
            digest = finish(train("--resume", folder) if has_checkpoint else train(*new, folder))
            if (digest, metrics(folder)) != expected:
                failures.append(f"kill {number}: parameters or metrics are not those of the unbroken run")
    figures = {
        "kills inside a write": in_write,
        "kills before the first checkpoint": without,
        "checkpoints of a run": EPOCHS + 1,
    }
    return Outcome(number + 1, failures, figures)


def _killed(process: Command, begun: Condition, delay: float, folder: Path | None, draw: random.Random) -> bool:
    """Kill a run some time after a condition holds, inside a write to `folder`; return False if it had ended before."""
    wait_for(process, begun)
    time.sleep(delay)
    if folder is not None:
        wait_for(process, lambda: any(map(is_draft, folder.iterdir())))
        time.sleep(draw.uniform(0, 0.002))
    if process.returncode is None:
        process.kill()
    if process.returncode > 0:
        raise RuntimeError(f"training ended with exit code {process.returncode}")
    return process.returncode < 0
