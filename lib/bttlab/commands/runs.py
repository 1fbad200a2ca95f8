"""List, show, compare and export runs of trainings and sweeps."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bttlab.commands import Outcome, add_actions
from bttlab.runs.scores import SCORES
from bttlab.util.errors import BttlabError
from bttlab.util.terminal import one_line, say

if TYPE_CHECKING:
    import pandas as pd

SHOWN = 30  # runs in a table, unless --limit says otherwise
METRICS = (*(f"dev.{name}" for name in SCORES if name != "mean_loss"), "loss")
VARIED = (
    *("encoders", "module", "linear_rank", "optimizer", "batch_size"),
    *("learning_rate", "learning_rates", "schedule.epochs", "seed"),
)
LISTED = ("id", "begun", "ended", "kind", "name", "status", "sweep", "device", *VARIED, *METRICS, "folder")
CONDITION = (
    "of pandas.DataFrame.query, such as 'linear_rank == 8 and dev.frame_accuracy > 0.9'; if given again, all must hold"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    summaries = {
        "list": "list runs, the latest first",
        "show": "show all that is known of a run",
        "compare": "put what differs between runs side by side, and their figures",
        "export": "write runs for other tools",
    }
    actions = add_actions(parser, summaries)
    for name in ("list", "compare", "export"):
        add = actions[name].add_argument
        add("--where", action="append", default=[], metavar="CONDITION", help=CONDITION)
        add("--sort", default="begun", metavar="KEY", help="largest or latest first (default: begun)")
        add("--ascending", action="store_true", help="smallest, or earliest, first")
        add("--limit", type=int, metavar="N", help=f"at most N, 0 for all (default: {SHOWN})")
        if name != "list":
            add("runs", nargs="*", metavar="RUN", help="as for show; by default all that --where chooses")
    actions["show"].add_argument("name", metavar="RUN", help="id or the beginning of one, name, or folder")
    export = actions["export"]
    export.add_argument("--best", action="store_true", help="with --weights: of the epoch with the best dev scores")
    target = export.add_mutually_exclusive_group(required=True)
    target.add_argument("--csv", type=Path, metavar="FILE", help="a line per run")
    target.add_argument(
        "--weights",
        type=Path,
        metavar="FILE.safetensors",
        help="of one run: the state_dict of the dense model with the same matrices, or of a module's class, which "
        "load_state_dict takes; and the model's sizes and labels",
    )
    target.add_argument(
        "--share",
        type=Path,
        metavar="DIR",
        help="runs to give away, in a new folder: records and metrics, without paths of this machine",
    )
    export.add_argument(
        "--parameters",
        action="store_true",
        help="with --share: checkpoints, too, with the words of the training split, and a module's files",
    )


def run(options: argparse.Namespace) -> Outcome:
    return {"list": _list, "show": _show, "compare": _compare, "export": _export}[options.action](options)


def _list(options: argparse.Namespace) -> Outcome:
    chosen = _chosen(options, 0)
    shown = chosen.head(_limit(options, SHOWN) or len(chosen)).reindex(columns=LISTED)
    rows = _rows(shown)
    figures = [name for name in METRICS if any(row[name] is not None for row in rows)]
    lines = [
        (
            row["id"],
            str(row["begun"]).replace("T", " ").removesuffix("+00:00"),
            row["kind"],
            row["status"],
            row["name"],
            " ".join(f"{key}={_cell(row[key])}" for key in VARIED if row[key] is not None),
            *(_cell(row[name]) for name in figures),
        )
        for row in rows
    ]
    titles = ("run", "begun (UTC)", "kind", "status", "name", "configuration", *figures)
    nothing = "no run meets --where" if options.where else "no runs; bttlab train and sweep leave some"
    text = _table(titles, lines) if rows else nothing
    if len(rows) < len(chosen):
        text += f"\n{len(rows):,} of {len(chosen):,} runs; --limit 0 lists all, --where chooses among them"
    return Outcome({"total": len(chosen), "runs": rows}, text)


def _show(options: argparse.Namespace) -> Outcome:
    from bttlab.runs import find_run, read_run
    from bttlab.runs.metrics import read_curves

    folder = find_run(options.name)
    record = read_run(folder)
    git = "no checkout" if record.git is None else record.git.commit + ", changed" * record.git.changed
    facts = {
        "run": record.id,
        "kind": record.kind,
        "name": record.name,
        "status": record.status + (f": {record.error}" if record.error else ""),
        "begun": record.begun,
        "ended": record.ended or "-",
        "device": record.device,
        "corpus": " ".join(filter(None, (record.corpus.get("name"), record.corpus.get("sha256", "")[:12]))),
        "folder": str(folder),
        "checkpoint": record.checkpoint or "-",
        "sweep": record.sweep or "-",
        "versions": ", ".join(f"{name} {version}" for name, version in record.versions.items()),
        "git": git,
    }
    for fault in read_curves(folder).faults:
        say(f"bttlab: note: {fault}")
    lines = [f"{name:11} {one_line(value)}" for name, value in facts.items()]
    lines += ["", _table(("configuration", ""), [(key, _cell(value)) for key, value in record.configuration.items()])]
    rows = [
        (name, _cell(row["value"]), row["unit"], str(row["provenance"]), row.get("how") or row.get("model", ""))
        for name, row in record.figures.items()
    ]
    lines += ["", _table(("figure", "value", "unit", "provenance", "how"), rows)]
    return Outcome(asdict(record) | {"folder": str(folder)}, "\n".join(lines))


def _compare(options: argparse.Namespace) -> Outcome:
    from bttlab.runs import read_run

    chosen = _chosen(options, _limit(options, 0 if options.runs else SHOWN))
    if len(chosen) < 2:
        raise BttlabError(f"runs compare takes two runs or more, not {len(chosen)}: name them, or choose with --where")
    records = [read_run(Path(folder)) for folder in chosen["folder"]]
    keys = dict.fromkeys(key for record in records for key in record.configuration)
    differing = [key for key in keys if len({str(record.configuration.get(key)) for record in records}) > 1]
    differing = ["corpus"] * (chosen["corpus"].nunique() > 1) + differing
    figures = list(dict.fromkeys(name for record in records for name in record.figures))
    rows = _rows(chosen.reindex(columns=list(dict.fromkeys(["id", "name", "status", *differing, *figures]))))
    shown = [name for name in METRICS if name in figures] or figures[:4]
    columns = ("id", "name", "status", *differing, *shown)
    text = _table(columns, [[_cell(row[name]) for name in columns] for row in rows])
    text += "\nbttlab runs show RUN says of each figure how it was measured or modelled"
    return Outcome({"differing": differing, "figures": figures, "runs": rows}, text)


def _export(options: argparse.Namespace) -> Outcome:
    from bttlab.runs.checkpoint import BEST, LATEST, PREVIOUS, to_weights
    from bttlab.runs.share import share
    from bttlab.runs.table import to_csv

    place = options.csv or options.weights or options.share
    if options.best and not options.weights:
        raise BttlabError("--best chooses the epoch of --weights; leave it out with --csv and --share")
    if options.parameters and not options.share:
        raise BttlabError("--parameters adds checkpoints to --share; leave it out with --csv and --weights")
    if options.weights and place.suffix != ".safetensors":
        raise BttlabError(f"--weights {place}: the format is safetensors; give a FILE.safetensors")
    if place.name in (LATEST, PREVIOUS, BEST) and place.exists():
        raise BttlabError(f"--weights {place} would replace a run's checkpoint: give a new file, and the run as RUN")
    chosen = _chosen(options, _limit(options, 0))
    folders = [Path(folder) for folder in chosen["folder"]]
    if not folders:
        raise BttlabError("no run is chosen; bttlab runs list shows all runs")
    if options.csv:
        to_csv(chosen, options.csv)
    elif options.share:
        for note in share(folders, options.share, options.parameters):
            say(f"bttlab: note: {note}")
    elif len(folders) != 1:
        raise BttlabError(
            f"{len(folders):,} runs are chosen: --weights writes one; name it, as bttlab runs list has it"
        )
    elif warning := to_weights(folders[0], options.weights, options.best):
        say(f"bttlab: note: {warning}")
    text = f"{len(folders):,} run{'s' * (len(folders) != 1)} written to {place}"
    return Outcome({"exported": len(folders), "to": str(place)}, text)


def _chosen(options: argparse.Namespace, limit: int) -> "pd.DataFrame":
    """Return the runs that the command line names or chooses, at most `limit` of them, 0 for all."""
    import pandas as pd

    from bttlab.runs import find_run, runs_table
    from bttlab.runs.table import where
    from bttlab.util.settings import nearest

    table = runs_table()
    if names := getattr(options, "runs", []):
        found = [find_run(name, table) for name in names]
        table = pd.concat([runs_table([folder]) for folder in dict.fromkeys(found)], ignore_index=True)
        table = table[table["folder"].isin(map(str, found))]  # not runs below a named one
    for fault in table.attrs.get("faults", ()):
        say(f"bttlab: note: left out: {fault}")
    for condition in options.where:
        table = where(table, condition)
    if options.sort not in table.columns:
        raise BttlabError(f"no run has {options.sort!r}{nearest(options.sort, map(str, table.columns))}")
    if options.sort != "begun" or options.ascending:
        table = table.sort_values(options.sort, ascending=options.ascending, kind="stable", key=_sortable)
    return table.head(limit or len(table))


def _sortable(column: "pd.Series") -> "pd.Series":
    """Return a column as numbers, or as text where it has values that are none."""
    import pandas as pd

    numbers = pd.to_numeric(column, errors="coerce")
    return numbers if numbers.notna().sum() == column.notna().sum() else column.astype(str)


def _limit(options: argparse.Namespace, default: int) -> int:
    if options.limit is not None and options.limit < 0:
        raise BttlabError(f"--limit {options.limit}: give how many runs at most, or 0 for all")
    return default if options.limit is None else options.limit


def _rows(table: "pd.DataFrame") -> list[dict[str, Any]]:
    """Return rows with None for what a run does not have."""
    import pandas as pd

    rows = table.to_dict("records")
    return [{key: None if value is pd.NA or value != value else value for key, value in row.items()} for row in rows]


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list) and len(value) > 1 and all(isinstance(item, list | tuple) for item in value):
        (_, first), *changes = value  # as of `bttlab.runs.rates`
        return "; ".join([_cell(first), *(f"after {count:,} samples {_cell(later)}" for count, later in changes)])
    if isinstance(value, list):
        return ",".join(map(str, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns with two blanks between them: thousands of lines come at once, and cut and grep can read them."""
    rows = [list(map(one_line, row)) for row in (titles, *rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)
