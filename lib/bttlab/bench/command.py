"""Measure side by side: contenders take turns on the same work in one run."""

import argparse
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from bttlab.annexes import brought
from bttlab.commands import Outcome
from bttlab.errors import BttlabError
from bttlab.terminal import say

SUMMARY = "measure side by side, in one run"

RECORDED = ("layer", "step", "order", "memory", "start")  # by `all`
BENCHMARKS = {
    "layer": "a linear layer, forward and backward, against dense and tensorly-torch",
    "step": "a training step, overlay against PyTorch and tensorly-torch",
    "order": "multiply-accumulates and memory against the best order of contraction",
    "memory": "peak memory while training",
    "start": "from a fresh process to the first step, from a fresh notebook to its first point",
    "runs": "the index of runs, with ten thousand in it",
    "dashboard": "training with and without one that redraws",
    "share": "ten processes on one shared emulated card against one alone, and what a stopped one costs",
    "all": "all that are recorded",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "what",
        choices=(*BENCHMARKS, *brought("benches")),
        help="; ".join(f"{name}: {what}" for name, what in BENCHMARKS.items()) + f"; {', '.join(brought('benches'))}: "
        "what the command of that name costs",
    )
    parser.add_argument("--data", default="atis", help="corpus, a name or a path (default: atis)")
    parser.add_argument(
        "--encoders", type=int, default=2, metavar="N", help="of step, start, dashboard, share (default: 2)"
    )
    parser.add_argument(
        "--samples",
        type=int,
        metavar="N",
        help="samples a turn (default: 16 for step, 4,478 for dashboard), or of a trial (100)",
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="turns that count (default: 9; 3 for start, share)")
    parser.add_argument(
        "--threads", type=int, nargs="+", default=[1, 2], metavar="N", help="of PyTorch, for layer, step (default: 1 2)"
    )
    parser.add_argument(
        "--docs",
        metavar="FOLDER",
        help="compare ratios with FOLDER/benchmarks.json; then write it, its tables in benchmarks.md and the figures",
    )
    parser.add_argument(
        "--strict", action="store_true", help="exit with 1 if ratios have fallen by more than their spread"
    )


def run(options: argparse.Namespace) -> Outcome:
    """Run the command."""
    from rich.console import Group

    for name, values in (("samples", [options.samples]), ("rounds", [options.rounds]), ("threads", options.threads)):
        for value in values:
            if value is not None and value < 1:
                raise BttlabError(f"--{name} is {value}: it must be at least 1")
    if options.docs is not None and options.what not in (*RECORDED, "all"):
        raise BttlabError(f"--docs: the benchmark {options.what} is not recorded; leave --docs out")

    from bttlab.bench import page, record

    folder = Path(options.docs) if options.docs is not None else None
    if folder is not None and not (folder / page.PAGE).is_file():
        raise BttlabError(f"--docs {folder}: there is no {page.PAGE} in it; give the folder of the project's pages")
    before = record.read(folder / page.RECORD) if folder is not None else None
    modules, results = {}, {}
    for name in RECORDED if options.what == "all" else [options.what]:
        say(f"bench {name} …")
        annex = brought("benches").get(name)
        modules[name] = annex.load() if annex else import_module(f"bttlab.bench.{name}")
        measure = _MEASURE.get(name, _measure_annex)
        results[name] = record.run(partial(measure, modules[name].measure, options))
    report = record.build(results)
    fallen = record.regressions(before, report) if before else []
    if folder is not None:
        if before:  # what has not run this time stays
            report["benchmarks"] = before["benchmarks"] | report["benchmarks"]
        record.write(folder / page.RECORD, report)
        page.write(folder, report, {name: import_module(f"bttlab.bench.{name}") for name in report["benchmarks"]})
    tables = [_rich(table) for name, module in modules.items() for table in module.tables(report["benchmarks"][name])]
    notes = [note for result in results.values() for note in dict.fromkeys(result["notes"])]
    lines = [*notes, *(f"REGRESSION {line}" for line in fallen)]
    return Outcome(report | {"regressions": fallen}, Group(*tables, *lines), 1 if fallen and options.strict else 0)


def _given(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    """What the user has given, or the benchmark's own defaults."""
    given = {name: getattr(options, name) for name in names}
    return {("corpus" if name == "data" else name): value for name, value in given.items() if value is not None}


def _measure_annex(measure: Callable, options: argparse.Namespace):
    return measure(**_given(options, *brought("benches")[options.what].load().OPTIONS))


def _start(measure: Callable, options: argparse.Namespace):
    notebook = _project() / "notebooks" / "03_train_on_the_u50.ipynb"
    return measure(notebook=notebook if notebook.is_file() else None, **_given(options, "data", "encoders", "rounds"))


def _memory(measure: Callable, options: argparse.Namespace):
    records = _project() / "data" / "baselines"
    return measure(records=records if records.is_dir() else None, **_given(options, "data"))


def _project() -> Path:
    from bttlab.card.manifest import overlays_folder

    return overlays_folder().parent


_MEASURE: dict[str, Callable] = {
    "layer": lambda measure, options: measure(**_given(options, "threads", "rounds")),
    "step": lambda measure, options: measure(**_given(options, "data", "encoders", "samples", "threads", "rounds")),
    "order": lambda measure, options: measure(),
    "memory": _memory,
    "start": _start,
    "runs": lambda measure, options: measure(**_given(options, "rounds")),
    "dashboard": lambda measure, options: measure(**_given(options, "data", "encoders", "samples", "rounds")),
    "share": lambda measure, options: measure(**_given(options, "data", "encoders", "rounds")),
}


def _rich(source: Any) -> Any:
    from rich.table import Table

    table = Table(title=source.title)
    for number, header in enumerate(source.headers):
        table.add_column(header, justify="right" if number else "left")
    for row in source.rows:
        table.add_row(*row)
    return table
