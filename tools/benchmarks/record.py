"""The record of a run of all benchmarks."""

import json
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.result import Result
from bttlab.baseline.machine import load_average
from bttlab.util.errors import BttlabError
from bttlab.util.files import write_file
from bttlab.util.quantities import to_json

VERSION = 1
PACKAGES = ("torch", "numpy", "tensorly-torch", "tensorly", "torchTT", "opt_einsum")


def machine() -> dict[str, Any]:
    """Return the machine, without its name, and the versions."""
    import torch

    from bttlab.baseline.machine import machine_of

    here = machine_of(torch.device("cpu"), [])
    return {
        "processor": here.cpu,
        "cores": here.cores,
        "system": here.system,
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "wait_policy": os.environ.get("OMP_WAIT_POLICY", "default"),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def run(measure: Callable[[], Result]) -> dict[str, Any]:
    """Run a benchmark and return its part of a record: what it found, when, and beside what load."""
    load_before = load_average()
    result = asdict(measure())
    date = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return result | {"date": date, "load_before": load_before, "load_after": load_average()}


def build(benchmarks: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the record of benchmarks that ran here."""
    record = {"version": VERSION, "machine": machine(), "benchmarks": benchmarks}
    return json.loads(to_json(record))  # what reading it would give


def write(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record whole, a row a line."""
    text = to_json(record, indent=1)
    write_file(path, text + "\n")


def read(path: Path) -> dict[str, Any] | None:
    """Return a record, or None if there is none."""
    if not path.exists():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        known = record["version"] == VERSION and all(
            "ratios" in benchmark for benchmark in record["benchmarks"].values()
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        known = False
    if not known:
        raise BttlabError(f"{path} is no record of benchmarks (version {VERSION}); move it away and run them again")
    return record
