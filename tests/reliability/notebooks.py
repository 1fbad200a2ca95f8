"""Two notebooks whose dashboards are clicked and whose cells are interrupted at random: no deadlock, nothing stays."""

import ast
import contextlib
import json
import queue
import random
import subprocess
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jupyter_client.manager import start_new_kernel

from bttlab.card import load_overlay
from bttlab.data import load_corpus
from bttlab.lab import Dashboard, Workload, card_target
from bttlab.lab.dashboard_runs import FINISHED, STOPPED
from bttlab.model import ModelConfig
from bttlab.util.quantities import measured
from reliability.footprint import MOST_GROWTH, Footprint
from reliability.outcome import Outcome
from subprocess_env import environment

ENCODERS = (2, 4)  # of the two models
SAMPLES = 400  # of a run: about a second
BUTTONS = ("start", "pause", "resume", "stop", "clear")
INTERRUPT = "interrupt"
LOOKS = 10  # at the memory while it goes on, but one a second at most
SETTLE_WITHIN = 30  # seconds
ANSWER_WITHIN = 60  # seconds, for any cell, on however busy a machine


def trial(count: int) -> Outcome:
    """Let two notebooks do so for `count` seconds, after a tenth of that to warm up."""
    draw, faults, done, figures = random.Random(0), [], dict.fromkeys((*BUTTONS, INTERRUPT), 0), {}
    looks = min(LOOKS, count)
    with contextlib.ExitStack() as stack:
        notebooks = [stack.enter_context(Notebook(encoders)) for encoders in ENCODERS]
        try:
            for notebook in notebooks:
                for action in (*done, "start"):
                    notebook.do(action, draw)
                notebook.footprint()  # of a whole run: what is made once is there from now on
            _use(notebooks, count / looks, draw, dict(done))
            before, memory = [notebook.footprint() for notebook in notebooks], []
            for _ in range(looks):
                _use(notebooks, count / looks, draw, done)
                memory.append([notebook.footprint().memory for notebook in notebooks])
            for notebook, was, *grown in zip(notebooks, before, *memory, strict=True):
                found = notebook.settled(was).faults_since(was) + notebook.cell("lab.faults()")
                faults += [f"{notebook.encoders}-ENC: {fault}" for fault in found]
                figures[f"{notebook.encoders}-ENC, resident memory before and after every {count / looks:g} s"] = (
                    measured([was.memory, *grown], "MiB", "/proc/self/statm of its kernel")
                )
        except (TimeoutError, RuntimeError) as error:
            faults.append(f"after {sum(done.values())} clicks and interrupts: {error}")
    tried = (
        f"Two notebooks at once, with 2-ENC and 4-ENC, each in a Jupyter kernel with a dashboard: for {count} "
        f"s their buttons ({', '.join(BUTTONS)}) clicked, and a cell that waits for training interrupted, at random: "
        f"every cell answers within {ANSWER_WITHIN} s, every run ends as finished or stopped, resident memory grows by "
        f"less than {MOST_GROWTH} MiB, and no file descriptor, thread or temporary file stays"
    )
    return Outcome("two notebooks", tried, sum(done.values()), faults, done | figures)


def _use(notebooks: list["Notebook"], seconds: float, draw: random.Random, done: dict[str, int]) -> None:
    """Click and interrupt for so long, and count what was done."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        notebook, action = draw.choice(notebooks), draw.choice(list(done))
        notebook.do(action, draw)
        done[action] += 1
        time.sleep(draw.uniform(0, 0.2))


class Notebook:
    """A kernel as its front end sees it; a context that ends it."""

    def __init__(self, encoders: int):
        self.encoders = encoders

    def __enter__(self) -> "Notebook":
        self._scratch = tempfile.TemporaryDirectory()
        places = {"TMPDIR": Path(self._scratch.name, "tmp"), "BTTLAB_RUNS": Path(self._scratch.name, "runs")}
        for place in places.values():
            place.mkdir()
        own = environment(**{name: str(place) for name, place in places.items()})
        self._manager, self._client = start_new_kernel(
            startup_timeout=ANSWER_WITHIN, kernel_name="python3", env=own, stderr=subprocess.DEVNULL
        )
        self.cell(f"from reliability.notebooks import Lab; lab = Lab({self.encoders})")
        return self

    def __exit__(self, *exception: object) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)
        self._manager.cleanup_resources()
        self._scratch.cleanup()

    def do(self, action: str, draw: random.Random) -> None:
        """Click a button, or interrupt a cell that waits."""
        if action != INTERRUPT:
            self.cell("lab.clear()" if action == "clear" else f"lab.board.{action}()")
            return
        message = self._client.execute("lab.board.wait()", store_history=False)
        time.sleep(draw.uniform(0, 0.3))
        for _ in range(3):  # one that comes before the cell begins is lost, as for a user
            self._manager.interrupt_kernel()
            with contextlib.suppress(TimeoutError):
                self._answer(message, 5)
                return
        # One that comes after the cell's end, before its answer, costs the answer (ipykernel); the next cell has one.
        self.cell("None")

    def footprint(self) -> Footprint:
        """What the kernel holds, as of now."""
        return Footprint(**self.cell("lab.footprint()"))

    def settled(self, before: Footprint) -> Footprint:
        """What the kernel holds once it has collected the pipes of threads that have printed: every ten seconds."""
        end = time.monotonic() + SETTLE_WITHIN
        while (now := self.footprint()).faults_since(before) and time.monotonic() < end:
            time.sleep(1)
        return now

    def cell(self, code: str) -> Any:
        """Run a cell; returns the value of what it is, through JSON."""
        return self._answer(
            self._client.execute(
                f"value = {code}" if code.startswith("lab.") else code,
                store_history=False,
                user_expressions={"value": "__import__('json').dumps(globals().get('value'))"},
            )
        )

    def _show(self) -> None:
        """Read what the kernel has published, as a page does that shows it; unread, it would stay in the kernel."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._client.get_iopub_msg(timeout=0)

    def _answer(self, message: str, within: float = ANSWER_WITHIN) -> Any:
        end = time.monotonic() + within
        while True:
            try:
                reply = self._client.get_shell_msg(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty as error:
                raise TimeoutError(f"{self.encoders}-ENC: no answer within {within} s") from error
            if reply["parent_header"].get("msg_id") == message:
                break
        self._show()
        content = reply["content"]
        if content["status"] != "ok" and content["ename"] != "KeyboardInterrupt":
            raise RuntimeError(f"{self.encoders}-ENC: {content['ename']}: {content['evalue']}")
        value = content.get("user_expressions", {}).get("value", {})
        text = value.get("data", {}).get("text/plain")
        return json.loads(ast.literal_eval(text)) if text else None


class Lab:
    """What a notebook's cells make: an overlay on a card, and a dashboard that trains on it."""

    def __init__(self, encoders: int):
        workload = Workload.of(load_corpus("airline"), ModelConfig(encoders=encoders))
        self.board = Dashboard([card_target(load_overlay("trainer"), workload)], samples=SAMPLES)
        self._faults: list[str] = []

    def wait(self) -> None:
        """Wait for what trains; a pause is ended first."""
        self.board.resume()
        self.board.wait()

    def clear(self) -> None:
        """Click Clear, and remember runs that ended as they must not."""
        over = [run for run in self.board.runs if not run.active]
        self._faults += [f"a run is {run.state}: {run.error}" for run in over if run.state not in (FINISHED, STOPPED)]
        self.board.clear()

    def footprint(self) -> dict[str, float]:
        """What the process holds when nothing trains and no run is shown."""
        self.wait()
        self.clear()
        self._faults += [f"a run is {run.state} when its dashboard has waited for it" for run in self.board.runs]
        return asdict(Footprint.now())

    def faults(self) -> list[str]:
        """What was wrong with the runs so far."""
        return self._faults
