"""Work in a process of its own, so that it can be seen what it holds, and whether it ends."""

import json
import subprocess
import sys
import tempfile
from dataclasses import asdict
from typing import Any

import numpy as np

from bttlab.data import Samples
from bttlab.model import ModelConfig
from bttlab.quantities import measured
from own_path import environment
from reliability.footprint import Footprint


def run(module: str, count: int, timeout: float | None = None) -> dict[str, Any]:
    """Run a module of this package with a count, and a folder of its own for temporary files.

    Returns
    -------
    dict
        What it printed as JSON: "faults" and "figures"; a fault where it did not end, or failed.
    """
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", f"reliability.{module}", str(count)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, env=environment(TMPDIR=scratch), timeout=timeout
            )
        except subprocess.TimeoutExpired as error:
            return {"faults": [f"no end within {error.timeout:.0f} s"], "figures": {}}
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


def random_samples(config: ModelConfig, count: int, draw: np.random.Generator) -> Samples:
    """Return valid samples of all lengths."""
    shape = count, config.sequence_length
    lengths = draw.integers(2, config.sequence_length + 1, count, np.int32)
    real = np.arange(config.sequence_length) < lengths[:, None]
    tokens = np.where(real, draw.integers(3, config.vocabulary_size, shape, np.int32), np.int32(0))
    slots = np.where(real, draw.integers(1, config.slots, shape, np.int32), np.int32(0))
    slots[:, 0] = 0
    return Samples(tokens, lengths, draw.integers(0, config.intents, count, np.int32), slots)
