"""List, show, compare and export runs of trainings, baselines, estimates and sweeps."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bttlab.commands import Outcome
from bttlab.util.errors import BttlabError
from bttlab.util.terminal import printable, say

SHOWN = 30  # runs in a table, unless --limit says otherwise
FIGURES = ("dev.intent_accuracy", "dev.slot_f1", "dev.frame_accuracy", "loss")
VARIED = ("encoders", "module", "linear_rank", "optimizer", "batch_size", "learning_rate", "learning_rates", "seed")
LISTED = ("id", "begun", "ended", "kind", "name", "sweep", "device", *VARIED, *FIGURES)
CONDITION = "such as linear_rank=8, learning_rate<=0.01, kind=training, dev.frame_accuracy>0.9; all must hold"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True, dest="action")

    def action(name: str, summary: str, chooses: bool = True) -> argparse.ArgumentParser:
        added = actions.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        added.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        if chooses:
            added.add_argument("--where", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help=CONDITION)
            added.add_argument(
                "--sort", default="begun", metavar="KEY", help="largest or latest first (default: begun)"
            )
            added.add_argument("--ascending", action="store_true", help="smallest, or earliest, first")
            added.add_argument("--limit", type=int, metavar="N", help=f"at most N, 0 for all (default: {SHOWN})")
        return added

    action("list", "list runs, the latest first")
    show = action("show", "show all that is known of a run", chooses=False)
    show.add_argument("name", metavar="RUN", help="id or the beginning of one, name, or folder")
    compare = action("compare", "put what differs between runs side by side, and their figures")
    compare.add_argument("runs", nargs="*", metavar="RUN", help="as for show; by default all that --where chooses")
    export = action("export", "write runs for other tools")
    export.add_argument("runs", nargs="*", metavar="RUN", help="as for show; by default all that --where chooses")
    target = export.add_mutually_exclusive_group(required=True)
    target.add_argument("--csv", type=Path, metavar="FILE", help="a line a run")
    target.add_argument("--tensorboard", type=Path, metavar="DIR", help="event files (needs tensorboard)")
    target.add_argument(
        "--weights",
        type=Path,
        metavar="FILE.safetensors",
        help="of one run: the state_dict of the dense model with the same matrices, and the model's sizes and labels",
    )
    target.add_argument("--mlflow", metavar="URI", help="a tracking server or store (needs mlflow)")
    index = action("index", "build the index again from folders of runs and what is below them", chooses=False)
    index.add_argument("folders", nargs="*", type=Path, metavar="DIR", help="besides the index's own")


def run(options: argparse.Namespace) -> Outcome:
    """Run the command."""
    return {"list": _list, "show": _show, "compare": _compare, "export": _export, "index": _index}[options.action](
        options
    )


def _list(options: argparse.Namespace) -> Outcome:
    from bttlab.runs import RunIndex

    index, chosen = RunIndex(), _filter(options, SHOWN)
    rows = _named(index, index.rows(LISTED, chosen))
    total = index.count(replace(chosen, limit=0))
    lines = [
        (
            row["id"],
            row["begun"].replace("T", " ").removesuffix("+00:00"),
            row["kind"],
            row["status"],
            row["name"],
            " ".join(f"{key}={_cell(row[key])}" for key in VARIED if row[key] is not None),
            *(_cell(row[name]) for name in FIGURES),
        )
        for row in rows
    ]
    titles = ("run", "begun (UTC)", "kind", "status", "name", "configuration", *FIGURES)
    text = _table(titles, lines) if rows else "no runs; bttlab train, baseline, estimate and sweep leave some"
    if len(rows) < total:
        text += f"\n{len(rows):,} of {total:,} runs; --limit 0 lists all, --where chooses among them"
    return Outcome({"total": total, "runs": rows}, text)


def _show(options: argparse.Namespace) -> Outcome:
    from bttlab.runs import RunIndex
    from bttlab.runs.curves import metrics_faults

    run = RunIndex().get(options.name)
    record = run.record
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
        "folder": str(run.folder) + ("" if run.folder.is_dir() else " (it is gone)"),
        "checkpoint": record.checkpoint or "-",
        "sweep": record.sweep or "-",
        "versions": ", ".join(f"{name} {version}" for name, version in record.versions.items()),
        "git": git,
    }
    ended = record.kind == "training" and record.ended and run.folder.is_dir()
    for fault in metrics_faults(run.folder, record.figures if ended else {}):
        say(f"bttlab: note: {fault}")
    lines = [printable(f"{name:11} {value}") for name, value in facts.items()]
    lines += ["", _table(("configuration", ""), [(key, _cell(value)) for key, value in record.configuration.items()])]
    rows = [
        (name, _cell(one["value"]), one["unit"], one["provenance"], one.get("how") or one.get("model", ""))
        for name, one in record.figures.items()
    ]
    lines += ["", _table(("figure", "value", "unit", "provenance", "how"), rows)]
    return Outcome(asdict(record) | {"folder": str(run.folder)}, "\n".join(lines))


def _compare(options: argparse.Namespace) -> Outcome:
    from bttlab.runs import RunIndex

    index, chosen = RunIndex(), _filter(options, SHOWN)
    differing = [key for key, values in index.keys("configuration", chosen).items() if values > 1]
    figures = list(index.keys("figures", chosen))
    rows = _named(index, index.rows(["id", "name", *differing, *figures], chosen))
    if len(rows) < 2:
        raise BttlabError(f"{len(rows)} runs are chosen: name at least two, or choose more with --where")
    shown = [name for name in FIGURES if name in figures] or figures[:4]
    columns = ("id", "name", *differing, *shown)
    text = _table(columns, [[_cell(row[name]) for name in columns] for row in rows])
    text += "\nbttlab runs show RUN says of each figure how it was measured or modelled"
    return Outcome({"differing": differing, "figures": figures, "runs": rows}, text)


def _export(options: argparse.Namespace) -> Outcome:
    from bttlab.runs import RunIndex, export

    index = RunIndex()
    chosen = _named(index, index.find(_filter(options, 0)))
    if not chosen:
        raise BttlabError("no run is chosen; bttlab runs list shows those there are")
    if options.csv:
        export.to_csv(chosen, options.csv)
    elif options.weights:
        _export_weights(chosen, options.weights)
    elif options.tensorboard:
        export.to_tensorboard(chosen, options.tensorboard)
    else:
        export.to_mlflow(chosen, options.mlflow)
    place = str(options.csv or options.weights or options.tensorboard or options.mlflow)
    return Outcome({"exported": len(chosen), "to": place}, f"{len(chosen):,} runs written to {place}")


def _export_weights(chosen: list, path: Path) -> None:
    """Write the dense model of a run's checkpoint, with what a reader in PyTorch needs beside it."""
    import json

    from safetensors.torch import save

    from bttlab.model import ModelConfig, Transformer
    from bttlab.runs import CheckpointStore
    from bttlab.util.files import write_file

    if len(chosen) != 1:
        raise BttlabError(f"{len(chosen):,} runs are chosen: --weights writes one; name it, as bttlab runs list has it")
    checkpoint, _ = CheckpointStore(chosen[0].folder).load()
    if not isinstance(checkpoint.settings.config, ModelConfig):
        raise BttlabError(
            f"{chosen[0].folder} is of a module of your own: load its checkpoint.safetensors into the class"
        )
    model = Transformer(checkpoint.settings.config)
    model.load(checkpoint.parameters)
    dense, corpus = model.to_dense(), checkpoint.corpus
    about = {
        "config": json.dumps(dense.config.to_dict()),
        "vocabulary": json.dumps(corpus.vocabulary),
        "intent_labels": json.dumps(corpus.intent_labels),
        "slot_labels": json.dumps(corpus.slot_labels),
    }
    write_file(path, save(dense.state_dict(), about), "--weights")


def _index(options: argparse.Namespace) -> Outcome:
    from bttlab.runs import RunIndex

    for folder in options.folders:
        if not folder.is_dir():
            raise BttlabError(f"{folder} is no folder; name those that runs lie in or below")
    index = RunIndex()
    count, faults = index.rebuild(options.folders)
    for fault in faults:
        say(f"bttlab: note: left out: {fault}")
    return Outcome({"index": str(index.path), "runs": count, "left_out": faults}, f"{count:,} runs in {index.path}")


def _named(index: Any, found: list) -> list:
    """Return what was found in the index, and name what was left out."""
    for fault in index.faults:
        say(f"bttlab: note: {fault}")
    return found


def _filter(options: argparse.Namespace, limit: int) -> Any:
    """The runs that the command line names or chooses, at most `limit` unless it says how many."""
    from bttlab.runs import Filter, RunIndex
    from bttlab.runs.index import LARGEST

    if options.limit is not None and not 0 <= options.limit <= LARGEST:
        raise BttlabError(f"--limit {options.limit}: give how many runs at most, or 0 for all")
    ids = [RunIndex().get(name).record.id for name in getattr(options, "runs", [])]
    if options.limit is not None:
        limit = options.limit
    return Filter(options.where, options.sort, options.ascending, 0 if ids else limit, ids)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return ",".join(map(str, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns with two blanks between them: thousands of lines come at once, and cut and grep can read them."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (titles, *rows)]
    return "\n".join(line.rstrip() for line in lines)
