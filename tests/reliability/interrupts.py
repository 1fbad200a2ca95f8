"""Training interrupted at random moments as users do it, from a shell and from a notebook; then resumed."""

import contextlib
import os
import queue
import random
import shutil
import signal
import statistics
import subprocess
import tempfile
import time
from itertools import chain
from pathlib import Path

from jupyter_client.manager import start_new_kernel

from bttlab.runs import CheckpointStore
from bttlab.runs.metrics import METRICS_FILE
from bttlab.runs.record import STOPPED, read_run
from reliability.outcome import Outcome, attempts
from reliability.training_process import TIMEOUT, finish, new_run, train, unbroken, wait_for
from tiny_runs import metrics, write_corpus

EPOCHS = 10
GOAL = 1.0  # seconds
WAYS = ("kernel interrupt", "SIGINT", "kernel restart", "SIGTERM")


def trial(count: int) -> Outcome:
    """Interrupt `count` runs, in each of the ways in turn, and resume them."""
    draw = random.Random(0)
    failures, seconds = [], {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as scratch:
        new = new_run(write_corpus(Path(scratch) / "corpus"), EPOCHS)
        expected, _, duration = unbroken(EPOCHS)
        for number in attempts(count):
            way, folder = WAYS[number % len(WAYS)], Path(scratch) / f"run{number}"
            stop = _stop_kernel if way.startswith("kernel") else _stop_process
            while (stopped := stop(way, [*new, str(folder)], folder, draw.uniform(0, duration))) is None:
                shutil.rmtree(folder)  # it was faster than the unbroken one
                duration /= 2
            taken, fault = stopped
            seconds[way].append(taken)
            if not fault and (finish(train("--resume", folder)), metrics(folder)) != expected:
                fault = "parameters or metrics are not those of the unbroken run"
            if fault:
                failures.append(f"{number}, {way}: {fault}")
    figures = {f"stopped and saved within {GOAL:g} s": sum(taken <= GOAL for taken in chain(*seconds.values()))}
    for way, each in seconds.items():
        if each:
            # from the request to the modification time of the checkpoint with the position
            figures[f"{way}, until saved, median and longest, s (measured)"] = statistics.median(each), max(each)
    return Outcome(number + 1, failures, figures)


def _stop_process(way: str, arguments: list[str], folder: Path, delay: float) -> tuple[float, str] | None:
    """Return the seconds until the position was saved, and what was wrong; None if training had ended before."""
    process = train(*arguments)
    wait_for(process, CheckpointStore(folder).latest.exists)
    time.sleep(delay)
    begin = time.time()
    with contextlib.suppress(ProcessLookupError):  # it has ended
        os.kill(process.pid, signal.Signals[way])
    process.output()
    if _is_complete(folder):
        return None
    expected = 128 + signal.Signals[way]
    taken, fault = _saved(folder, begin)
    return taken, fault if process.returncode == expected else f"exit code {process.returncode}, not {expected}"


def _stop_kernel(way: str, arguments: list[str], folder: Path, delay: float) -> tuple[float, str] | None:
    """As `_stop_process`; after an interrupt the run goes on to its end in the same kernel."""
    manager, client = start_new_kernel(startup_timeout=TIMEOUT, kernel_name="python3", stderr=subprocess.DEVNULL)
    manager.shutdown_wait_time = TIMEOUT  # Jupyter kills a kernel after 5 s, which a busy machine may need to begin
    try:
        _execute(client, ["train", *arguments])
        while not CheckpointStore(folder).latest.exists():
            time.sleep(0.005)
        time.sleep(delay)
        begin = time.time()
        if way == "kernel restart":
            manager.shutdown_kernel(restart=True)  # the first half of a restart; the other is a new kernel
            return None if _is_complete(folder) else _saved(folder, begin)
        manager.interrupt_kernel()
        code = _exit_code(client, folder)
        if _is_complete(folder):
            return None
        taken, fault = _saved(folder, begin)
        if fault or code != "130":
            return taken, fault or f"exit code {code}, not 130"
        _execute(client, ["train", "--resume", str(folder)])
        code = _exit_code(client, folder)
        return taken, "" if code == "0" else f"going on in the same kernel: exit code {code}"
    finally:
        client.stop_channels()
        if manager.is_alive():
            manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


def _saved(folder: Path, begin: float) -> tuple[float, str]:
    status = read_run(folder).status
    fault = "" if status == STOPPED else f"the position was not saved: the run is {status}"
    return CheckpointStore(folder).latest.stat().st_mtime - begin, fault


def _execute(client, arguments: list[str]) -> None:
    client.execute(f"from bttlab.cli import main; code = main({arguments!r})", user_expressions={"code": "code"})


def _exit_code(client, folder: Path) -> str:
    """What the command returned; an exception's name if it raised one; nothing if a run that ended says none."""
    end, ended = time.monotonic() + TIMEOUT, False
    while True:
        try:
            reply = client.get_shell_msg(timeout=5)
        except queue.Empty:
            if ended:  # an interrupt after the cell's end costs the cell's answer (ipykernel)
                return ""
            if time.monotonic() > end:
                raise
            ended = _is_complete(folder)
            continue
        if reply["msg_type"] == "execute_reply":  # else the kernel's answers to whether it was ready
            break
    content = reply["content"]
    return content["user_expressions"]["code"]["data"]["text/plain"] if content["status"] == "ok" else content["ename"]


def _is_complete(folder: Path) -> bool:
    return (folder / METRICS_FILE).exists() and any(line["event"] == "test" for line in metrics(folder))
