"""`bttlab` in processes of their own, and what its runs come to."""

import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from bttlab.cli import main
from bttlab.runs import CheckpointStore
from tiny_runs import metrics, write_corpus

Condition = Callable[[], bool]
TIMEOUT = 1200  # seconds, on however busy a machine
WAIT = "60"  # seconds for a real card, which the process before may still hold
device = "emulated"  # what `bttlab train` gets
asleep = 120.0  # seconds of a suspension

# A fork of a process that has imported these begins at once; a process of its own takes seconds.
_fork_server = multiprocessing.get_context("forkserver")
_fork_server.set_forkserver_preload(["bttlab.commands.train", "bttlab.runs.devices", "pynq", "seqeval.metrics"])


class Command:
    """A command line of `bttlab` in a process and session of its own; what it prints is kept."""

    def __init__(self, *arguments: Any, prepare: Callable[[], object] | None = None):
        self._output = tempfile.NamedTemporaryFile("r")
        self._process = _fork_server.Process(target=_run, args=(list(map(str, arguments)), self._output.name, prepare))
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, or the negative number of the signal that ended it; None while it runs."""
        return self._process.exitcode

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.join()

    def output(self) -> str:
        """Wait for the end, and return what was printed; a command that does not end is killed."""
        self._process.join(TIMEOUT)
        if self.returncode is None:
            self.kill()
        return self._output.read()


def _run(arguments: list[str], output: str, prepare: Callable[[], object] | None) -> None:
    os.setsid()
    for descriptor, path in ((1, output), (2, os.devnull)):
        os.dup2(os.open(path, os.O_WRONLY), descriptor)
    if prepare is not None:
        prepare()
    sys.exit(main(arguments))


class Unbroken(NamedTuple):
    """A run that nobody stops: its parameters' digest and metrics; seconds from its folder, and its checkpoint, on."""

    result: tuple[str | None, list]
    since_folder: float
    since_checkpoint: float


def new_run(corpus: Path, epochs: int) -> list[str]:
    """Return the arguments of a run with AdamW, without its folder, which comes last."""
    options = ["--data", str(corpus), "--device", device, "--wait", WAIT, "--optimizer", "adamw"]
    return [*options, "--epochs", str(epochs), "--out"]


def train(*arguments: Any, prepare: Callable[[], object] | None = None) -> Command:
    """Start a training; `prepare` is called in its process first."""
    return Command("train", *arguments, "--json", prepare=prepare)


def finish(process: Command) -> str | None:
    """Wait for a run's end; returns the digest of its parameters, None if it failed."""
    output = process.output()
    return json.loads(output)["parameters_sha256"] if process.returncode == 0 else None


def wait_for(process: Command, condition: Condition) -> None:
    """Return as soon as a condition holds, or the process has ended."""
    while process.returncode is None and not condition():
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
