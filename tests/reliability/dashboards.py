"""Dashboards in kernels: two on one card, a suspended kernel, a suspended holder of a card, alone or shared."""

import ast
import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from jupyter_client.manager import start_new_kernel

from keepers import keeping
from reliability import training_process
from reliability.outcome import Outcome, attempts
from reliability.training_process import TIMEOUT
from subprocess_env import environment
from tiny_runs import write_corpus

from fake_xrt import FakeXrt, install

SAMPLES = 2000
ADDRESS = "0000:3b:00.1"  # of the fake XRT's card
IMPORTS = """
import hashlib
from pathlib import Path
from bttlab.card import card_lock, load_overlay, sharing, shells
from bttlab.data import load_corpus
from bttlab.lab import Dashboard, Workload, card_target
from bttlab.model import ModelConfig

sharing.FOLDER = Path({folder!r})
if {is_fake}:
    card_lock.DEVICES = shells.PCI_DEVICES = Path({folder!r})
work = Workload.of(load_corpus({corpus!r}), ModelConfig(encoders=1))

def load(device, wait=0.0):
    global overlay
    try:
        overlay = load_overlay("trainer", device, wait=wait)
    except Exception as error:
        return str(error)

def new(name):
    return Dashboard([card_target(overlay, work)], samples={samples}, name=name)

def result(board):
    run = board.runs[-1]
    drawn = int(board._figure.loss.lines[0].get_xdata()[-1])
    return run.state, run.error, run.count, drawn, hashlib.sha256(run.losses.tobytes()).hexdigest()
"""


class Kernel(AbstractContextManager):
    """A Jupyter kernel in which a notebook's cells are executed one after the other."""

    def __init__(self, place: "Place"):
        variables = environment(**place.xrt.environment) if place.xrt else environment()
        variables["BTTLAB_RUNS"] = str(place.folder / "runs")
        self._manager, self._client = start_new_kernel(
            startup_timeout=TIMEOUT, kernel_name="python3", env=variables, stderr=subprocess.DEVNULL
        )
        corpus = str(place.folder / "corpus")
        names = {"folder": str(place.folder), "corpus": corpus, "samples": SAMPLES, "is_fake": place.xrt is not None}
        self.run(IMPORTS.format(**names))

    def run(self, code: str, value: str = "None") -> Any:
        """Execute a cell; return the value of an expression after it."""
        reply = self._client.execute(code, user_expressions={"value": value}, reply=True, timeout=TIMEOUT)["content"]
        if reply["status"] != "ok":
            raise RuntimeError(f"{reply['ename']}: {reply['evalue']}")
        answer = reply["user_expressions"]["value"]
        if answer["status"] != "ok":
            raise RuntimeError(f"{answer['ename']}: {answer['evalue']}")
        return ast.literal_eval(answer["data"]["text/plain"])

    def begin(self) -> None:
        """Open a dashboard, start a run, and return at its first samples."""
        self.run("board = new('a'); board.start()")
        end = time.monotonic() + TIMEOUT
        while self.run("", "board.runs[-1].count") == 0 and time.monotonic() < end:
            time.sleep(0.01)

    def end(self) -> tuple:
        """Wait for the run's end; return state, error, number of samples, the last one drawn, and a digest."""
        return self.run("board.wait()", "result(board)")

    def signal(self, number: int) -> None:
        os.kill(self._manager.provisioner.pid, number)

    def __exit__(self, *_: object) -> None:
        self.signal(signal.SIGCONT)
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)
        self._manager.cleanup_resources()


class Place:
    """A folder with a corpus, and a card: a real one, or the fake XRT's, which stands for one."""

    def __init__(self, folder: Path):
        self.folder = folder
        write_corpus(folder / "corpus")
        self.xrt: FakeXrt | None = None
        self.card = training_process.device
        if self.card == "emulated":
            self.card, self.xrt = "0", install(folder)
            for node in (folder / ADDRESS / "drm" / "renderD128", folder / "renderD128"):
                node.parent.mkdir(parents=True, exist_ok=True)
                node.touch()


def trial(count: int) -> Outcome:
    """Let each of the things happen in turn; each run must have the losses of one that nothing happens to."""
    draw = random.Random(0)
    failures, seen = [], dict.fromkeys(WAYS, 0)
    with tempfile.TemporaryDirectory() as name:
        place = Place(Path(name))
        with Kernel(place) as kernel:
            kernel.run("load('emulated')")
            kernel.begin()
            expected = kernel.end()
        if expected[:4] != ("finished", "", SAMPLES, SAMPLES):
            failures.append(f"the unbroken run: {expected}")
        for number in attempts(count):
            way = list(WAYS)[number % len(WAYS)]
            seen[way] += 1
            if fault := WAYS[way](place, expected, draw.uniform(0.0, 1.0)):
                failures.append(f"{number}, {way}: {fault}")
    figures = {way: times for way, times in seen.items() if times}
    return Outcome(number + 1, failures, figures | {"s of a suspension": training_process.asleep})


def _suspended(place: Place, expected: tuple, delay: float) -> str:
    """Suspend the kernel of a run on the emulated card."""
    with Kernel(place) as kernel:
        kernel.run("load('emulated')")
        kernel.begin()
        time.sleep(delay)
        kernel.signal(signal.SIGSTOP)
        time.sleep(training_process.asleep)
        kernel.signal(signal.SIGCONT)
        result = kernel.end()
    return "" if result == expected else f"{result}"


def _of_one_kernel(place: Place, expected: tuple, delay: float) -> str:
    """Start a run in a second dashboard while the first one's is going on, or paused."""
    with Kernel(place) as kernel:
        kernel.run("load('emulated')")
        kernel.begin()
        time.sleep(delay)
        said = kernel.run("board.pause(); other = new('b'); other.start()", "(len(other.runs), other._message.value)")
        if said[0] or "in another dashboard" not in said[1]:
            return f"a second dashboard said {said}"
        kernel.run("board.resume()")
        results = kernel.end(), kernel.run("other.start(); other.wait()", "result(other)")
    return "" if results == (expected, expected) else f"{results}"


def _of_two_kernels(place: Place, expected: tuple, delay: float) -> str:
    """Ask for a card in a second kernel while the first one's run has it, is suspended, and has ended."""
    with Kernel(place) as second:
        with Kernel(place) as first:
            first.run(f"load({place.card})")
            first.begin()
            time.sleep(delay)
            first.signal(signal.SIGSTOP)
            said = second.run("", f"load({place.card}, {training_process.asleep})")
            first.signal(signal.SIGCONT)
            if "is in use after" not in (said or ""):
                return f"the second kernel said {said}"
            results = [first.end()]
        if said := second.run("", f"load({place.card}, {TIMEOUT})"):
            return f"the card is not free after the first kernel's end: {said}"
        second.begin()
        results.append(second.end())
    return "" if results == [expected] * 2 else f"{results}"


def _shared(place: Place, expected: tuple, delay: float) -> str:
    """Let two kernels train in time slices of a card; the first is suspended until the second's run has ended."""
    if place.xrt is None:
        return ""  # a real card has a keeper or has none
    with keeping(place.folder / f"bttlab-{ADDRESS}.shared"), Kernel(place) as second, Kernel(place) as first:
        for kernel in (first, second):
            kernel.run(f"load({place.card})")
        first.begin()
        second.begin()
        time.sleep(delay)
        first.signal(signal.SIGSTOP)
        begin = time.monotonic()
        results = [second.end()]
        time.sleep(max(0.0, training_process.asleep - (time.monotonic() - begin)))
        first.signal(signal.SIGCONT)
        results.append(first.end())
    return "" if results == [expected] * 2 else f"{results}"


WAYS: dict[str, Callable[[Place, tuple, float], str]] = {
    "kernel suspended": _suspended,
    "two dashboards of one kernel": _of_one_kernel,
    "two kernels on one card, the first suspended": _of_two_kernels,
    "two kernels that share a card, the first suspended": _shared,
}
