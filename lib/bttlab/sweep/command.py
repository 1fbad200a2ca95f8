"""Run the trials of a specification on this machine's cores, or on the workers of a Dask scheduler.

The same command continues a stopped sweep.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from bttlab.commands import Outcome
from bttlab.util.errors import BttlabError
from bttlab.util.terminal import printable, say

SUMMARY = "run the trials of a specification, here or on a Dask cluster"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add = parser.add_argument
    add("spec", type=Path, metavar="SPEC.yaml", help="what to vary; docs/experiments.md explains the file")
    add("--scheduler", metavar="ADDRESS", help="a Dask scheduler, as tls://host:8786 (default: workers here)")
    add("--tls-ca-file", type=Path, metavar="FILE", help="who signs the certificates of that scheduler's cluster")
    add("--tls-cert", type=Path, metavar="FILE", help="the certificate to show it")
    add("--tls-key", type=Path, metavar="FILE", help="its key")
    add("--workers", type=int, metavar="N", help="workers here (default: as many as cores and memory allow)")
    add("--out", type=Path, metavar="DIR", help="folder of the sweep, with a run for each trial (default: runs/NAME)")


def run(options: argparse.Namespace) -> Outcome:
    """Run the command."""
    from bttlab.sweep import Sweep, open_cluster, read_spec
    from bttlab.sweep.cluster import open_to_all

    spec = read_spec(options.spec)
    sweep = Sweep(spec, options.out or Path("runs") / spec.name)
    credentials = _credentials(options)
    line = _Line(spec.objective)
    try:
        with open_cluster(options.scheduler, options.workers, sweep.resources, credentials) as client:
            if warning := open_to_all(options.scheduler):
                say(f"bttlab: warning: {warning}")
            sweep.run(client, line.show)
    except KeyboardInterrupt:
        line.end()
        done, total = len(sweep.progress.records), sweep.progress.total
        say(f"bttlab: {done} of {total} trials are done; the same command goes on")
        raise
    finally:
        line.end()
    return _outcome(sweep)


def _credentials(options: argparse.Namespace) -> Any:
    """Return the certificates of the command line; None for those of Dask's configuration."""
    files = {name: getattr(options, name) for name in ("tls_ca_file", "tls_cert", "tls_key")}
    if not any(files.values()):
        return None
    if options.scheduler is None:
        raise BttlabError("--tls-ca-file, --tls-cert and --tls-key are for --scheduler; workers here have their own")
    for path in files.values():
        if path is None:
            raise BttlabError("--tls-ca-file, --tls-cert and --tls-key go together; give all three")
        path.read_bytes()  # an error names the file
    from distributed.security import Security

    return Security(
        require_encryption=True,
        tls_ca_file=str(options.tls_ca_file),
        tls_client_cert=str(options.tls_cert),
        tls_client_key=str(options.tls_key),
    )


class _Line:
    """Progress in one line of stderr: redrawn on a terminal, else written for each finished trial or note."""

    def __init__(self, objective: str) -> None:
        self._objective, self._last, self._state = objective, "", None

    def show(self, progress: Any) -> None:
        """Show the progress."""
        text = printable(describe(progress, self._objective))
        if text == self._last:
            return
        if sys.stderr.isatty():
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)  # noqa: T201
        elif self._state != (state := (len(progress.records), progress.failed, progress.note)):
            say(f"bttlab: {text}")
            self._state = state
        self._last = text

    def end(self) -> None:
        """Leave the line."""
        if self._last and sys.stderr.isatty():
            print(file=sys.stderr)  # noqa: T201
        self._last = ""


def describe(progress: Any, objective: str) -> str:
    """Return a sweep's progress as a phrase; `objective` is the figure to compare trials by."""
    parts = [f"{len(progress.records)} of {progress.total} trials done"]
    if progress.failed:
        parts[0] += f", {progress.failed} of them failed"
    if progress.note:
        parts.append(progress.note)
    if progress.best is not None:
        parts.append(f"best so far: {progress.best.name}, {_result(progress.best, objective)}")
    if progress.parts:
        running = min(len(progress.parts), progress.workers)
        workers = f"{progress.workers} worker{'s' * (progress.workers != 1)}"
        waiting = len(progress.parts) - running
        parts.append(f"{running} running on {workers}" + (f", {waiting} handed out to wait" if waiting else ""))
    if progress.seconds_left is not None and progress.parts:
        minutes, seconds = divmod(round(progress.seconds_left), 60)
        parts.append(f"about {minutes} min {seconds} s left")
    return "; ".join(parts)


def _outcome(sweep: Any) -> Outcome:
    spec, progress = sweep.spec, sweep.progress
    records = sorted(
        progress.records.values(),
        key=lambda record: (record.value(spec.objective) is None, record.value(spec.objective) or 0),
        reverse=spec.maximize,
    )
    lines = [printable(f"{record.id}  {record.name}  {_result(record, spec.objective)}") for record in records]
    lines.append(f"{len(records)} of {progress.total} trials, {progress.failed} failed, in {sweep.folder}")
    order = spec.objective if spec.maximize else f"{spec.objective} --ascending"
    lines.append(f"bttlab runs compare --where 'sweep={spec.name}' --sort {order}")
    data = {
        "sweep": spec.name,
        "folder": str(sweep.folder),
        "objective": spec.objective,
        "trials": progress.total,
        "failed": progress.failed,
        "best": progress.best.id if progress.best else None,
        "runs": [
            {"id": record.id, "name": record.name, "status": record.status, "error": record.error}
            | {spec.objective: record.figures.get(spec.objective)}
            for record in records
        ],
    }
    return Outcome(data, "\n".join(lines), 2 if records and progress.failed == len(records) else 0)


def _result(record: Any, objective: str) -> str:
    if record.status != "complete":
        return f"{record.status}: {record.error}"
    figure = record.figures.get(objective)
    if not figure:
        return ""
    unit = "" if figure["unit"] == "1" else f" {figure['unit']}"
    return f"{objective} {figure['value']:.4g}{unit} ({figure['provenance']})"
