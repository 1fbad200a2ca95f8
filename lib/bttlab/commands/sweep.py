"""Run the trials of a specification on this machine's cores, or on the workers of a Dask scheduler.

The same command continues a stopped sweep.
"""

import argparse
import signal
from pathlib import Path
from typing import Any

from bttlab.commands import Outcome
from bttlab.util.terminal import one_line, say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("spec", type=Path, metavar="SPEC.yaml", help="what to vary; docs/experiments.md explains the file")
    add(
        "--scheduler",
        metavar="ADDRESS",
        help="a Dask scheduler, as tls://host:8786; certificates are those of Dask's configuration (default: processes "
        "of this machine, without a network)",
    )
    add("--workers", type=int, metavar="N", help="processes here (default: as many as cores and memory allow)")
    add("--out", type=Path, metavar="DIR", help="folder of the sweep, with a run for each trial (default: runs/NAME)")


def run(options: argparse.Namespace) -> Outcome:
    from bttlab.runs import add_to_index
    from bttlab.runs.sweep import Sweep, open_executor, read_spec
    from bttlab.runs.sweep.executor import open_to_all

    spec = read_spec(options.spec)
    sweep = Sweep(spec, options.out or Path("runs") / spec.name)
    if sweep.repeated:
        trials = f"{sweep.progress.total} trial{'s' * (sweep.progress.total != 1)}"
        say(f"bttlab: note: {trials}, since {sweep.repeated} more would repeat another's configuration and corpus")
    shown = None

    def show(progress: Any) -> None:
        """Print the progress for each finished trial or note."""
        nonlocal shown
        if (state := (len(progress.records), progress.failed, progress.note)) != shown:
            say(f"bttlab: {progress.in_words()}")
            shown = state

    if warning := open_to_all(options.scheduler):
        say(f"bttlab: warning: {warning}")
    try:
        with open_executor(options.scheduler, options.workers) as executor:
            try:
                add_to_index(sweep.folder)
            except OSError as error:
                say(f"bttlab: note: bttlab runs list will not show the sweep: {error.filename}: {error.strerror}")
            sweep.run(executor, show)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C is not to interrupt the end of this process
        done, total = len(sweep.progress.records), sweep.progress.total
        say(f"bttlab: {done} of {total} trials are done; the same command goes on")
        raise
    return _outcome(sweep)


def _outcome(sweep: Any) -> Outcome:
    from bttlab.runs.record import COMPLETE, RunRecord
    from bttlab.runs.sweep.sweep import result_of

    spec, progress = sweep.spec, sweep.progress
    sign = -1 if spec.maximize else 1

    def rank(record: RunRecord) -> tuple[bool, bool, float]:
        """Complete trials come first, the best of them at the top: others have trained less, or failed."""
        value = record.value(spec.objective)
        return record.status != COMPLETE, value is None, sign * (value or 0)

    records = sorted(progress.records.values(), key=rank)
    lines = [f"{record.id}  {record.name}  {result_of(record, spec.objective)}" for record in records]
    lines.append(f"{len(records)} of {progress.total} trials, {progress.failed} failed, in {sweep.folder}")
    order = spec.objective if spec.maximize else f"{spec.objective} --ascending"
    lines.append(f"bttlab runs compare --where 'sweep == \"{spec.name}\"' --sort {order}")
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
    return Outcome(data, "\n".join(map(one_line, lines)), 2 if records and progress.failed == len(records) else 0)
