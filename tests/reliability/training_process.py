"""`bttlab` in processes of their own, and what its runs come to."""

import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bttlab.cli import main
from bttlab.train import CheckpointStore
from own_path import environment
from tiny_runs import metrics, write_corpus

TIMEOUT = 1200  # seconds, on however busy a machine
WAIT = "60"  # seconds for a real card, which the process before may still hold
device = "emulated"  # what `bttlab train` gets
forks = False  # start commands from this process, with what it has imported


class Command:
    """A command line of `bttlab` in a session of its own; what it prints is kept.

    Attributes
    ----------
    returncode : int or None
        The exit code, or the negative number of the signal that ended it; None before `poll` has seen the end.
    """

    def __init__(self, *arguments: Any, new: bool = False):
        self.returncode: int | None = None
        if forks and not new:
            _warm_up()
        self._output, line = tempfile.TemporaryFile("w+"), [str(argument) for argument in arguments]
        self.pid = os.fork()
        if self.pid:
            return
        try:
            os.setsid()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.dup2(self._output.fileno(), 1)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            if new or not forks:
                os.execve(sys.executable, [sys.executable, "-m", "bttlab", *line], environment())
            sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))
            code = main(line)
        except BaseException:
            code = 70
        os._exit(code)

    def poll(self) -> int | None:
        """Return `returncode`."""
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode

    def wait(self, seconds: float = TIMEOUT) -> int | None:
        """Wait for the end, at most so long; returns `returncode`."""
        end = time.monotonic() + seconds
        while self.poll() is None and time.monotonic() < end:
            time.sleep(0.001)
        return self.returncode

    def kill(self) -> None:
        """Kill all processes of the session, or the one process that has not begun it yet."""
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError):
                kill(self.pid, signal.SIGKILL)
        self.wait()

    def output(self) -> str:
        """Wait for the end, and return what was printed; a command that does not end is killed."""
        if self.wait() is None:
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
def _warm_up() -> None:
    """Train here once: processes that are forked from this one have modules and programs at hand."""
    torch.set_num_threads(1)  # other threads do not live on in a fork
    with tempfile.TemporaryDirectory() as scratch, open(os.devnull, "w") as nowhere:
        with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            main(["train", *new_run(write_corpus(Path(scratch) / "corpus"), 1), str(Path(scratch) / "run")])


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
