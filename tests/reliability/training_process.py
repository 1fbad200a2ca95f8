"""`bttlab` in processes of their own, and what its runs come to."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from bttlab.runs import CheckpointStore
from subprocess_env import environment
from tiny_runs import metrics, write_corpus

TIMEOUT = 1200  # seconds, on however busy a machine
WAIT = "60"  # seconds for a real card, which the process before may still hold
device = "emulated"  # what `bttlab train` gets


class Command:
    """A command line of `bttlab` in a session of its own; what it prints is kept.

    Attributes
    ----------
    returncode : int or None
        The exit code, or the negative number of the signal that ended it; None before `poll` has seen the end.
    """

    def __init__(self, *arguments: Any):
        self._output = tempfile.TemporaryFile("w+")
        command = [sys.executable, "-m", "bttlab", *map(str, arguments)]
        self._process = subprocess.Popen(
            command, stdout=self._output, stderr=subprocess.DEVNULL, env=environment(), start_new_session=True
        )
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    def poll(self) -> int | None:
        """Return `returncode`."""
        return self._process.poll()

    def kill(self) -> None:
        """Kill all processes of the session."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def output(self) -> str:
        """Wait for the end, and return what was printed; a command that does not end is killed."""
        try:
            self._process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()
        self._output.seek(0)
        return self._output.read()


class Unbroken(NamedTuple):
    """A run that nobody stops: its parameters' digest and metrics; seconds from its folder, and its checkpoint, on."""

    result: tuple[str | None, list]
    since_folder: float
    since_checkpoint: float


def new_run(corpus: Path, epochs: int) -> list[str]:
    """Return the arguments of a run with AdamW, without its folder, which comes last."""
    options = ["--data", str(corpus), "--device", device, "--wait", WAIT, "--optimizer", "adamw"]
    return [*options, "--epochs", str(epochs), "--out"]


def train(*arguments: Any) -> Command:
    """Start a training."""
    return Command("train", *arguments, "--json")


def finish(process: Command) -> str | None:
    """Wait for a run's end; returns the digest of its parameters, None if it failed."""
    output = process.output()
    return json.loads(output)["parameters_sha256"] if process.returncode == 0 else None


def wait_for(process: Command, condition: Callable[[], bool]) -> None:
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
