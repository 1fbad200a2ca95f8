"""`bttlab train` on the emulated U50 as processes, and what their runs come to."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TIMEOUT = 300  # seconds


def new_run(corpus: Path, epochs: int) -> list[str]:
    """Return the arguments of a run with AdamW, without its folder, which comes last."""
    options = ["--data", str(corpus), "--device", "emulated", "--optimizer", "adamw"]
    return [*options, "--epochs", str(epochs), "--out"]


def train(*arguments: Any) -> subprocess.Popen:
    """Start a process."""
    command = [sys.executable, "-m", "bttlab", "train", *map(str, arguments), "--json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def finish(process: subprocess.Popen) -> str | None:
    """Wait for a run's end; returns the digest of its parameters, None if it failed."""
    output, _ = process.communicate(timeout=TIMEOUT)
    return json.loads(output)["parameters_sha256"] if process.returncode == 0 else None


def wait_for(process: subprocess.Popen, condition: Callable[[], bool]) -> None:
    """Return as soon as a condition holds, or the process has ended."""
    while process.poll() is None and not condition():
        time.sleep(0.0002)
