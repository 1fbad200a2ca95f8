"""docs/reliability.json, what the trials found, and the table in docs/reliability.md that is made from it."""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from pages import filled

from bttlab import __version__
from bttlab.baseline.machine import describe, load_average
from bttlab.runs.provenance import git_state
from bttlab.util.quantities import to_json
from reliability.outcome import Outcome

TABLE = "table of reliability.json"
HEAD = ("trial", "what was tried", "attempts", "failed", "figures", "version, processor and day")
MOST_FAILURES = 20  # that are kept word for word
MOST_FIGURES = 4  # in the table


def load(folder: Path) -> dict[str, Any]:
    """Return the records by trial; none if there are none yet."""
    path = folder / "reliability.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def record(name: str, outcome: Outcome, count: int) -> dict[str, Any]:
    """Return what is kept of an outcome."""
    machine, git = describe(torch.device("cpu"), load_average()), git_state()
    return {
        **asdict(outcome),
        "failures": list(outcome.failures[:MOST_FAILURES]),
        "failed": len(outcome.failures),
        "command": f"make reliability TRIALS='{name} --count {count}'",
        "version": __version__ + (f", {git.commit[:7]}{' changed' * git.changed}" if git else ""),
        "machine": f"{machine.cpu}, {machine.cores} cores, Python {machine.python}",
        "day": time.strftime("%Y-%m-%d"),
    }


def save(folder: Path, records: dict[str, Any], order: list[str]) -> None:
    """Write the records, in an order of trials, and renew the table; what stands around it stays."""
    records = {name: records[name] for name in order if name in records}
    (folder / "reliability.json").write_text(to_json(records, indent=1) + "\n", encoding="utf-8")
    page = folder / "reliability.md"
    text = filled(page.read_text(encoding="utf-8"), {TABLE: table(records)}, page.name)
    page.write_text(text, encoding="utf-8")


def table(records: dict[str, Any]) -> str:
    """Return the records as a table in Markdown, with the first figures of each."""
    rows = [HEAD, ["---"] * len(HEAD)]
    for name, row in records.items():
        told = "; ".join(f"{name}: {_figure(value)}" for name, value in list(row["figures"].items())[:MOST_FIGURES])
        where = f"{row['version']}, {row['machine'].split(',')[0]}, {row['day']}"
        numbers = (f"{row['attempts']:,}", f"{row['failed']:,}")
        rows.append([f"{row['title']} (`{name}`)", row["tried"], *numbers, told, where])
    return "".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |\n" for row in rows)


def _figure(value: Any) -> str:
    if isinstance(value, dict):
        provenance = "" if value["provenance"] == "measured" else f" ({value['provenance']})"
        return f"{_figure(value['value'])} {value['unit']}{provenance}"
    if isinstance(value, list):
        return ", ".join(map(_figure, value))
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
