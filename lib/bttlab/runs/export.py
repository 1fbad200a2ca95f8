"""Export runs to CSV, TensorBoard and MLflow."""

import csv
import io
import os
import re
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from bttlab.runs.curves import read_curves
from bttlab.runs.index import FoundRun
from bttlab.util.errors import BttlabError
from bttlab.util.files import draft_folder, write_file
from bttlab.util.plugins import missing_package
from bttlab.util.terminal import printable


class ExportError(BttlabError):
    """Raised if an export fails."""


def to_csv(runs: Sequence[FoundRun], path: Path) -> None:
    """Write a line for each run: id, kind, name, status, times, and every key and figure that one of them has."""
    fixed = ("id", "kind", "name", "status", "begun", "ended", "sweep", "device")
    keys = list(dict.fromkeys(key for run in runs for key in run.record.configuration))
    figures = list(dict.fromkeys(name for run in runs for name in run.record.figures))
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow([*fixed, *map(_as_cell, keys), *map(_as_cell, figures), "folder"])
    for run in runs:
        record = run.record
        values = [record.figures.get(name, {}).get("value") for name in figures]
        known = [getattr(record, name) for name in fixed] + [record.configuration.get(key) for key in keys]
        writer.writerow([*map(_as_cell, known), *map(_as_cell, values), _as_cell(str(run.folder))])
    write_file(path, text.getvalue(), "--csv")


def to_tensorboard(runs: Sequence[FoundRun], folder: Path) -> None:
    """Write each run's curves, configuration and figures as a TensorBoard run below a folder.

    Raises
    ------
    ExportError
        If tensorboard is not installed, or the run is in that folder already.
    """
    writer = _needs("torch.utils.tensorboard").SummaryWriter
    for run in runs:
        record, curves = run.record, read_curves(run.folder)
        place = Path(folder) / _as_name(f"{record.name}-{record.id}")
        try:
            with draft_folder(place) as draft, writer(str(draft)) as board:
                for tag, step, value in _points(curves):
                    board.add_scalar(tag, value, step)
                board.add_text("figures", _provenance(record))
                board.add_hparams(_plain(record.configuration), _numbers(record), run_name=".")
        except OSError as error:
            raise ExportError(f"{place} cannot be written ({error.strerror}); export into another folder") from None


def to_mlflow(runs: Sequence[FoundRun], uri: str) -> None:
    """Log each run's configuration, curves, figures and checkpoint to an MLflow tracking server or store.

    Raises
    ------
    ExportError
        If mlflow is not installed, or the server or store does not take them.
    """
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # its own 7 keep a wrong address for four minutes
    mlflow = _needs("mlflow")
    try:
        _log_to(mlflow, runs, uri)
    except mlflow.exceptions.MlflowException as error:
        raise ExportError(f"MLflow does not take the runs at {uri}: {str(error).splitlines()[0]}") from None


def _log_to(mlflow: Any, runs: Sequence[FoundRun], uri: str) -> None:
    mlflow.set_tracking_uri(uri)
    mlflow.set_experiment("bttlab")
    for run in runs:
        record = run.record
        with mlflow.start_run(run_name=f"{record.name}-{record.id}"):
            mlflow.set_tags({"bttlab.id": record.id, "kind": record.kind, "sweep": record.sweep, **record.versions})
            mlflow.log_params(_plain(record.configuration))
            for tag, step, value in _points(read_curves(run.folder)):
                mlflow.log_metric(tag.replace("/", "."), value, step=step)
            mlflow.log_metrics(_numbers(record))
            mlflow.log_text(_provenance(record), "figures.md")
            checkpoint = run.folder / Path(record.checkpoint).name  # nothing from outside of the run's folder
            if record.checkpoint and checkpoint.is_file() and not checkpoint.is_symlink():
                mlflow.log_artifact(str(checkpoint))


def _as_name(text: str) -> str:
    """Return a run's name as the name of one folder, without separators."""
    return re.sub(r"[^\w .,=+@-]", "_", text).lstrip(".") or "run"


def _as_cell(value: Any) -> Any:
    """Return a value that a spreadsheet does not take for a formula."""
    if isinstance(value, str):
        value = printable(value)
        return f"'{value}" if value.startswith(("=", "+", "-", "@")) else value
    return value


def _needs(module: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise ExportError(f"{missing_package(error, 'this export')}, or export with --csv FILE") from None


def _points(curves) -> list[tuple[str, int, float]]:
    """Return (tag, samples, value) of every point of a run's curves."""
    points = [("train/loss", round(x), y) for x, y in zip(curves.samples, curves.losses, strict=True)]
    for name, values in curves.scores.items():
        points += [(f"dev/{name}", round(x), y) for x, y in zip(curves.scored, values, strict=True)]
    return points


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value if isinstance(value, int | float | str | bool) else str(value) for key, value in values.items()}


def _numbers(record) -> dict[str, float]:
    return {name: figure["value"] for name, figure in record.figures.items() if figure["value"] is not None}


def _provenance(record) -> str:
    rows = [
        f"| {name} | {figure['value']} | {figure['unit']} | {figure['provenance']} | {figure.get('how', '')} |"
        for name, figure in record.figures.items()
    ]
    return "\n".join(["| figure | value | unit | provenance | how |", "|---|---|---|---|---|", *rows])
