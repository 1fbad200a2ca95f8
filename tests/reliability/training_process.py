"""`bttlab train` on the emulated U50 as processes, and what their runs come to."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from bttlab.train import CheckpointStore
from tiny_runs import metrics, write_corpus

TIMEOUT = 300  # seconds
WAIT = "60"  # seconds for a real card, which the process before may still hold
device = "emulated"  # what `bttlab train` gets


class Unbroken(NamedTuple):
    """A run that nobody stops: its parameters' digest and metrics; seconds from its folder, and its checkpoint, on."""

    result: tuple[str | None, list]
    since_folder: float
    since_checkpoint: float


def new_run(corpus: Path, epochs: int) -> list[str]:
    """Return the arguments of a run with AdamW, without its folder, which comes last."""
    options = ["--data", str(corpus), "--device", device, "--wait", WAIT, "--optimizer", "adamw"]
    return [*options, "--epochs", str(epochs), "--out"]


def train(*arguments: Any) -> subprocess.Popen:
    """Start a process."""
    command = [sys.executable, "-m", "bttlab", "train", *map(str, arguments), "--json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def finish(process: subprocess.Popen) -> str | None:
    """Wait for a run's end; returns the digest of its parameters, None if it failed."""
    output, _ = process.communicate(timeout=TIMEOUT)
    return json.loads(output)["parameters_sha256"] if process.returncode == 0 else None


def wait_for(process: subprocess.Popen, condition: Callable[[], bool]) -> None:
    """Return as soon as a condition holds, or the process has ended."""
    while process.poll() is None and not condition():
        time.sleep(0.0002)


@cache
def unbroken(epochs: int) -> Unbroken:
    """Train once for all trials that compare with it."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, begins = Path(scratch) / "run", []
        process = train(*new_run(write_corpus(Path(scratch) / "corpus"), epochs), folder)
        for condition in (folder.exists, CheckpointStore(folder).latest.exists):
            wait_for(process, condition)
            begins.append(time.monotonic())
        result = finish(process), metrics(folder)
    return Unbroken(result, *(time.monotonic() - begin for begin in begins))
