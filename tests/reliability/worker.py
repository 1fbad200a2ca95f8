"""Work in a process of its own, so that it can be seen what it holds."""

import json
import subprocess
import sys
import tempfile
from dataclasses import asdict
from typing import Any

from bttlab.util.quantities import measured
from reliability.footprint import Footprint
from subprocess_env import environment


def run(module: str, count: int) -> dict[str, Any]:
    """Run a module of this package with a count, and a folder of its own for temporary files.

    Returns
    -------
    dict
        What it printed as JSON: "faults" and "figures"; a fault where it failed.
    """
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", f"reliability.{module}", str(count)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment(TMPDIR=scratch))
    if done.returncode:
        return {"faults": [f"exit code {done.returncode}: {done.stderr[-2000:]}"], "figures": {}}
    return json.loads(done.stdout)


def report(before: Footprint, after: Footprint, faults: list[str], figures: dict[str, Any]) -> None:
    """Print what `run` returns."""
    figures = {
        **figures,
        "resident memory before": measured(before.memory, "MiB", "/proc/self/statm"),
        "resident memory after": measured(after.memory, "MiB", "/proc/self/statm"),
    }
    for name, number in asdict(before).items():
        if name != "memory":
            figures[f"{name} before and after"] = f"{number} and {getattr(after, name)}"
    print(json.dumps({"faults": faults + after.faults_since(before), "figures": figures}))
