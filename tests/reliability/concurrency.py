"""Many training processes at once, each on an emulated card of its own: the bits of one alone."""

import tempfile
import time
from pathlib import Path

from reliability.outcome import Outcome
from reliability.training_process import finish, new_run, train, unbroken
from tiny_runs import metrics, write_corpus

EPOCHS = 10


def trial(count: int) -> Outcome:
    """Train in one process, then in `count` at once."""
    with tempfile.TemporaryDirectory() as scratch:
        corpus = write_corpus(Path(scratch) / "corpus")
        expected = unbroken(EPOCHS).result
        folders = [Path(scratch) / f"run{number}" for number in range(count)]
        processes = [train(*new_run(corpus, EPOCHS), folder) for folder in folders]
        training = [0]
        while any(process.poll() is None for process in processes):
            at_work = zip(processes, folders, strict=True)
            training.append(sum(process.poll() is None and folder.exists() for process, folder in at_work))
            time.sleep(0.01)
        found = [(finish(process), metrics(folder)) for process, folder in zip(processes, folders, strict=True)]
    failures = [
        f"process {number}: parameters or metrics are not those of one alone"
        for number, result in enumerate(found)
        if result != expected
    ]
    tried = (
        f"`bttlab train` on the emulated U50 (AdamW, {EPOCHS} epochs of 24 samples) in one process, then the same in "
        "all of them at once: parameters and metrics compared, bit by bit"
    )
    return Outcome("processes at once", tried, count, failures, {"training at the same moment, at most": max(training)})
