"""The record of a run of all benchmarks."""

import json
import os
import platform
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.result import Result
from bttlab.baseline.machine import load_average
from bttlab.baseline.receipt import SAME, ProgramUsed, Receipt, details_of, quantities_of
from bttlab.model import ModelConfig
from bttlab.util.errors import BttlabError
from bttlab.util.quantities import column_metadata, to_json
from bttlab.util.settings import from_values

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
        "versions": {name: _version(name) for name in PACKAGES} | {"torch": torch.__version__},  # which names its build
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
    if result["programs"]:
        result["programs"] = programs(result["programs"])
    date = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return result | {"date": date, "load_before": load_before, "load_after": load_average()}


def build(benchmarks: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the record of benchmarks that ran here."""
    record = {"version": VERSION, "machine": machine(), "benchmarks": benchmarks}
    return json.loads(to_json(record))  # what reading it would give


def write(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record as a receipt: its bytes on the chip are modelled, all else is measured or counted."""
    here, benchmarks = record["machine"], record["benchmarks"]
    rows = benchmarks.get("memory", {}).get("rows", [])
    chip = {
        f"memory.{row['encoders']}-ENC.{row['contender']}": {
            "value": row["peak"],
            **column_metadata("bytes", "modelled", "words of the banks, and the machine's memories"),
        }
        for row in rows
        if row["contender"].startswith("on chip")
    }
    programs = {used.name: used for each in benchmarks.values() for used in map(_used, each.get("programs", []))}
    Receipt(
        title="benchmarks",
        command=["python", "-m", "benchmarks", "memory"],  # the figures are of this one
        figures=quantities_of(chip, SAME),
        programs=list(programs.values()),
        versions={"python": here["python"]} | here["versions"],
        details=record,
    ).write(path, "the record")


def _used(values: Mapping[str, Any]) -> ProgramUsed:
    return from_values(ProgramUsed, values)


def programs(encoders: Iterable[int]) -> list[dict[str, Any]]:
    """Return the programs of models with these numbers of encoders, for a benchmark's part of a record."""
    from bttlab.compiler.program import compile

    configs = [ModelConfig(encoders=count) for count in encoders]
    return [asdict(ProgramUsed.of(config, "bidirectional", compile(config).sha256)) for config in configs]


def read(path: Path) -> dict[str, Any] | None:
    """Return a record, or None if there is none."""
    if not path.exists():
        return None
    try:
        record = details_of(path)
        known = record["version"] == VERSION and all(
            "ratios" in benchmark for benchmark in record["benchmarks"].values()
        )
    except (BttlabError, ValueError, KeyError, TypeError, AttributeError):
        known = False
    if not known:
        raise BttlabError(f"{path} is no record of benchmarks (version {VERSION}); move it away and run them again")
    return record
