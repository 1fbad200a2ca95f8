"""Sweeps that are killed, interrupted, or lose a worker, and continued: the results of an unbroken one."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from bttlab.runs import CheckpointStore, read_run, tensors_digest
from bttlab.runs.recipe import flat
from processes import ask
from reliability import training_process
from reliability.outcome import Outcome, attempts
from reliability.training_process import TIMEOUT
from tiny_runs import settings, write_corpus

TRIALS = 4
WAYS = ("SIGKILL of the sweep", "SIGKILL of a worker, as for want of memory", "SIGINT", "a worker suspended")
ENDED_SECONDS = 30.0  # in which the workers of a killed sweep have ended


def trial(count: int) -> Outcome:
    """Break a sweep in each way in turn, at a random moment, and run the same command again."""
    draw = random.Random(0)
    failures, seen, left = [], dict.fromkeys(WAYS, 0), 0
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        fixed = flat(settings(write_corpus(scratch / "corpus"), epochs=15))
        for key in ("seed", "learning_rate"):
            del fixed[key]
        spec = {"fixed": fixed, "vary": {"learning_rate": [0.01, 0.04], "seed": [0, 1]}}
        (scratch / "tiny.yaml").write_text(json.dumps(spec))
        begin = time.monotonic()
        assert _ended(_start(scratch, "unbroken")) == 0
        duration, expected = time.monotonic() - begin, _digests(scratch / "unbroken")
        assert len(expected) == TRIALS
        for number in attempts(count):
            way, folder = WAYS[number % len(WAYS)], scratch / f"sweep{number}"
            process = _start(scratch, folder.name)
            end = time.monotonic() + TIMEOUT
            while not list(folder.glob("*/checkpoint.safetensors")) and time.monotonic() < end:
                time.sleep(0.01)
            time.sleep(draw.uniform(0, 0.2 * duration))
            workers = _workers(process)
            seen[way] += 1
            if way == "SIGKILL of the sweep":
                process.kill()
            elif way == "SIGINT":
                process.send_signal(signal.SIGINT)
            elif workers:
                worker = draw.choice(workers)
                _signal(worker, signal.SIGSTOP if "suspended" in way else signal.SIGKILL)
                if "suspended" in way:
                    time.sleep(training_process.asleep)
                    _signal(worker, signal.SIGCONT)
            code = _ended(process)
            _, alive = psutil.wait_procs(workers, timeout=ENDED_SECONDS)
            left += len(alive)
            if "worker" in way and code != 0:
                failures.append(f"{number}, {way}: the sweep ended with exit code {code}")
            elif (again := _ended(_start(scratch, folder.name))) != 0:
                failures.append(f"{number}, {way}: continued, it ended with exit code {again}")
            elif _digests(folder) != expected:
                failures.append(f"{number}, {way}: results are not those of the unbroken sweep")
            shutil.rmtree(folder, ignore_errors=True)
    figures = {way: times for way, times in seen.items() if times}
    return Outcome(number + 1, failures, figures | {"s of a suspension": training_process.asleep, "workers left": left})


def _start(scratch: Path, out: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "bttlab", "sweep", "tiny.yaml", "--workers", "2", "--out", out]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, cwd=scratch, env=os.environ | {"OMP_NUM_THREADS": "1"}, **silent)


def _ended(process: subprocess.Popen) -> int:
    try:
        return process.wait(TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _workers(process: subprocess.Popen) -> list[psutil.Process]:
    """Return the processes that run trials: those of a pool, but the one that tracks its resources."""
    try:
        children = psutil.Process(process.pid).children()
    except psutil.NoSuchProcess:
        return []
    commands = ask(children, lambda child: " ".join(child.cmdline()))
    return [child for child, command in commands.items() if "resource_tracker" not in command]


def _signal(process: psutil.Process, number: int) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return


def _digests(folder: Path) -> dict[str, str]:
    """Return a digest of the parameters of each complete trial."""
    done = [path.parent for path in folder.glob("*/run.json") if read_run(path.parent).status == "complete"]
    return {run.name: tensors_digest(CheckpointStore(run).load()[0].parameters) for run in done}
