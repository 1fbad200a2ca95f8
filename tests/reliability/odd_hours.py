"""What happens to a training that nobody looks after: terminal, clock, sleep, file system; then resumed."""

import contextlib
import errno
import fcntl
import json
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

from bttlab.runs import CheckpointStore, record
from bttlab.runs.record import COMPLETE, read_run
from reliability.outcome import Outcome, attempts
from reliability.training_process import Command, finish, new_run, train, unbroken, wait_for
from tiny_runs import metrics, write_corpus

EPOCHS = 10
ASLEEP = 5.0  # seconds, of each suspension
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
    return Outcome(number + 1, failures, {way: times for way, times in seen.items() if times})


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
        time.sleep(ASLEEP if number == signal.SIGSTOP else 0)
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


def _no_flock() -> None:
    """As on a network's file system that has no locks."""

    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    fcntl.flock = flock


def _two_nodes(arguments: list, folder: Path, delay: float) -> str:
    """Two processes train in one folder on a file system without flock; the first is killed, and resumed."""
    first = _started(arguments, folder, delay / 2, _no_flock)
    second = train("--resume", folder, prepare=_no_flock)
    second.output()
    was_running = first.returncode is None
    first.kill()
    if was_running and second.returncode != 2:
        return f"a second process trained in the same folder: exit code {second.returncode}"
    digest = finish(train("--resume", folder, prepare=_no_flock))
    return "" if digest else "the lock of a killed process stays"


WAYS = {
    "SIGHUP": _hang_up,
    "stdout and stderr closed": _without_reader,
    f"suspended for {ASLEEP:g} s": _suspend,
    "clock set back by an hour": _clock,
    "two processes in a folder without flock": _two_nodes,
}
