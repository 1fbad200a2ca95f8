"""Kill and interrupt trainings many times, and print what was found."""

import argparse
import importlib
import json
import os
import platform
import signal
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pages import filled

from bttlab.util.files import write_file
from reliability import training_process
from reliability.outcome import Outcome

ROOT = Path(__file__).resolve().parents[2]
RECORD, PAGE = ROOT / "data" / "reliability.json", ROOT / "docs" / "reliability.md"
TRIALS = {
    "crash_resume": 600,
    "interrupts": 100,
    "odd_hours": 60,
    "dashboards": 20,
    "sweeps": 40,
    "environments": 40,
    "flips": 2000,
    "memory": 20,
}
MOST_FAILURES = 20  # that are printed


def trial_of(name: str) -> Any:
    return importlib.import_module(f"reliability.{name}").trial


def record(name: str, outcome: Outcome, seconds: float) -> None:
    """Put a trial into the record, in place of one of the same name, and write the page's table again."""
    entries = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    entries[name] = {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "device": training_process.device,
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        "attempts": outcome.attempts,
        "failures": list(outcome.failures),
        "seconds": round(seconds),
        "figures": dict(outcome.figures),
    }
    write_file(RECORD, json.dumps({name: entries[name] for name in TRIALS if name in entries}, indent=1) + "\n")
    write_file(PAGE, filled(PAGE.read_text(encoding="utf-8"), {"results": table()}, PAGE.name))


def table() -> str:
    """Return the table of the page, from the record."""
    lines = ["| trial | date | attempts | harmful | what was seen |", "|---|---|---:|---:|---|"]
    for name, entry in json.loads(RECORD.read_text(encoding="utf-8")).items():
        seen = "; ".join(f"{what}: {in_words(value)}" for what, value in entry["figures"].items())
        lines.append(f"| `{name}` | {entry['date']} | {entry['attempts']} | {len(entry['failures'])} | {seen} |")
    return "\n".join(lines)


def in_words(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(in_words, value))
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def main(arguments: list[str] | None = None) -> int:
    """Run a command line; returns 1 if an attempt of any trial failed."""
    parser = argparse.ArgumentParser(prog="python -m reliability", description=__doc__)
    parser.add_argument("trials", nargs="*", metavar="TRIAL", help=f"of {', '.join(TRIALS)} (default: all)")
    parser.add_argument("--count", type=int, metavar="N", help="attempts (default: each trial's own number)")
    parser.add_argument("--device", metavar="N", default="emulated", help="the number of a real card to train on")
    parser.add_argument("--asleep", type=float, default=120.0, metavar="S", help="of each suspension (default: 120)")
    parser.add_argument("--record", action="store_true", help="into data/reliability.json and docs/reliability.md")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a job in the background, and its processes
    training_process.device, training_process.asleep = options.device, options.asleep
    if unknown := [name for name in options.trials if name not in TRIALS]:
        parser.error(f"no trial {unknown[0]!r}; there are {', '.join(TRIALS)}")
    failed = 0
    for name in options.trials or TRIALS:
        begin = time.monotonic()
        outcome = trial_of(name)(options.count or TRIALS[name])
        if options.record:
            record(name, outcome, time.monotonic() - begin)
        print(f"{name}: {outcome.attempts} attempts, {len(outcome.failures)} failed, {time.monotonic() - begin:.0f} s")
        for what, value in outcome.figures.items():
            print(f"  {what}: {value}")
        print(*(f"  {failure}" for failure in outcome.failures[:MOST_FAILURES]), sep="\n", flush=True)
        failed += len(outcome.failures)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
