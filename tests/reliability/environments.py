"""`make environment` killed at a random moment, and called again."""

import contextlib
import os
import random
import signal
import tempfile
import time
from pathlib import Path

from reliability.outcome import Outcome, attempts
from small_project import Project


def trial(count: int) -> Outcome:
    """Kill make, uv and pip of a small project's environment `count` times; the next call must complete it."""
    draw = random.Random(0)
    failures, ended = [], 0
    with tempfile.TemporaryDirectory() as name:
        begin = time.monotonic()
        if (done := _project(Path(name) / "unbroken").make()).returncode:
            failures.append(f"the unbroken one: exit code {done.returncode}")
        duration = time.monotonic() - begin
        for number in attempts(count):
            project = _project(Path(name) / f"killed{number}")
            process = project.start()
            time.sleep(draw.uniform(0.0, duration))
            ended += process.poll() is not None
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            done = project.make()
            if done.returncode or not project.has("torch", "cuda", "locked"):
                failures.append(f"{number}: exit code {done.returncode}: {done.stderr[-200:]}")
    return Outcome(number + 1, failures, {"of these made before the kill": ended})


def _project(folder: Path) -> Project:
    folder.mkdir()
    return Project(folder)
