"""What happens to a training that nobody looks after: terminal, clock, sleep, memory, file system; then resumed."""

import contextlib
import errno
import fcntl
import json
import os
import random
import resource
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

import psutil

from bttlab.runs import CheckpointStore, record
from bttlab.runs.record import COMPLETE, read_run
from reliability import training_process
from reliability.outcome import Outcome, attempts
from reliability.training_process import Command, finish, new_run, train, unbroken, wait_for
from tiny_runs import metrics, write_corpus

EPOCHS = 10
SET_BACK = 3600.0  # seconds


def trial(count: int) -> Outcome:
    """Let each of the things happen in turn; the run is resumed if it was stopped."""
    draw = random.Random(0)
    failures, seen = [], dict.fromkeys(WAYS, 0)
    with tempfile.TemporaryDirectory() as scratch:
        new = new_run(write_corpus(Path(scratch) / "corpus"), EPOCHS)
        expected, _, duration = unbroken(EPOCHS)
        for number in attempts(count):
            way, folder = list(WAYS)[number % len(WAYS)], Path(scratch) / f"run{number}"
            fault = WAYS[way]([*new, folder], folder, draw.uniform(0, 0.7 * duration))
            if not fault:
                digest = finish(train("--resume", folder))
                if (digest, metrics(folder)) != expected:
                    fault = "parameters or metrics are not those of the unbroken run"
                elif read_run(folder).status != COMPLETE:
                    fault = f"the record says {read_run(folder).status}"
            seen[way] += 1
            if fault:
                failures.append(f"{number}, {way}: {fault}")
            shutil.rmtree(folder, ignore_errors=True)
    figures = {way: times for way, times in seen.items() if times}
    return Outcome(number + 1, failures, figures | {"s of a suspension": training_process.asleep})


def _started(arguments: list, folder: Path, delay: float, prepare: Callable[[], object] | None = None) -> Command:
    process = train(*arguments, prepare=prepare)
    wait_for(process, CheckpointStore(folder).latest.exists)
    time.sleep(delay)
    return process


def _hang_up(arguments: list, folder: Path, delay: float) -> str:
    process = _started(arguments, folder, delay)
    with contextlib.suppress(ProcessLookupError):  # it has ended
        os.kill(process.pid, signal.SIGHUP)
    process.output()
    return "" if process.returncode in (0, 128 + signal.SIGHUP) else f"exit code {process.returncode}"


def _close_pipes() -> None:
    """Give the process pipes for stdout and stderr whose reader has gone."""
    for descriptor in (1, 2):
        reader, writer = os.pipe()
        os.close(reader)
        os.dup2(writer, descriptor)
        os.close(writer)


def _without_reader(arguments: list, folder: Path, delay: float) -> str:
    process = _started(arguments, folder, delay, _close_pipes)
    process.output()
    # 120: Python could not flush stdout at its end; the command itself says 2
    return "" if process.returncode in (0, 2, 120) else f"exit code {process.returncode}"


def _suspend(arguments: list, folder: Path, delay: float) -> str:
    process = _started(arguments, folder, delay)
    for number in (signal.SIGSTOP, signal.SIGCONT):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
        time.sleep(training_process.asleep if number == signal.SIGSTOP else 0)
    process.output()
    return "" if process.returncode == 0 else f"exit code {process.returncode}"


def _set_clock_back() -> None:
    """Let the clocks of the process, but the monotonic one, go back by an hour two seconds from now."""
    real, end = time.time, time.monotonic() + 2.0
    time.time = lambda: real() - (SET_BACK if time.monotonic() > end else 0.0)
    record.now = lambda: datetime.fromtimestamp(time.time(), timezone.utc).isoformat(timespec="seconds")


def _clock(arguments: list, folder: Path, delay: float) -> str:
    del delay
    process = train(*arguments, prepare=_set_clock_back)
    process.output()
    if process.returncode:
        return f"exit code {process.returncode}"
    times = [line["seconds"]["value"] for line in _lines(folder) if line.get("seconds")]
    return "" if min(times) > 0 else "a time is not positive"


def _lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def _limit_memory(arguments: list, folder: Path, delay: float) -> str:
    """Give a training no more address space than it has, as on a host whose memory is used up."""
    process = _started(arguments, folder, delay)
    with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):  # it has ended
        size = psutil.Process(process.pid).memory_info().vms
        resource.prlimit(process.pid, resource.RLIMIT_AS, (size, size))
    process.output()
    return "" if process.returncode in (0, 2) else f"exit code {process.returncode}"


def _on_node(name: str, number: int) -> None:
    """Be on a node of that name, with a folder on a network's file system whose flock fails with an error number."""

    def flock(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    fcntl.flock = flock
    socket.gethostname = lambda: name


def _two_nodes(number: int, arguments: list, folder: Path, delay: float) -> str:
    """Train in one folder on two nodes; the first one's process is killed, and the run resumed there."""
    a, b = (partial(_on_node, name, number) for name in ("node-a", "node-b"))
    first = _started(arguments, folder, delay / 2, a)
    second = train("--resume", folder, prepare=b)
    second.output()
    if first.returncode is None and second.returncode != 2:
        return f"a second process trained in the same folder: exit code {second.returncode}"
    first.kill()
    if first.returncode == -signal.SIGKILL:
        other = train("--resume", folder, prepare=b)
        other.output()
        if other.returncode != 2:  # node-b cannot know that node-a's process has ended
            return f"another node took the folder of a process that it cannot see: exit code {other.returncode}"
    return "" if finish(train("--resume", folder, prepare=a)) else "the lock of a killed process stays on its node"


WAYS = {
    "SIGHUP": _hang_up,
    "stdout and stderr closed": _without_reader,
    "suspended": _suspend,
    "clock set back by an hour": _clock,
    "no more memory": _limit_memory,
} | {
    f"two nodes in a folder whose flock fails with {name}": partial(_two_nodes, getattr(errno, name))
    for name in ("ENOLCK", "ENOTSUP", "ENOSYS")
}
