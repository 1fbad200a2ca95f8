"""Export runs to CSV, TensorBoard and MLflow, and the weights of one."""

import json
import os
import re
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bttlab.runs.curves import Curves, read_curves
from bttlab.runs.record import RunRecord, read_run
from bttlab.util.errors import BttlabError
from bttlab.util.files import draft_folder, write_file
from bttlab.util.plugins import missing_package

if TYPE_CHECKING:
    import pandas as pd


class ExportError(BttlabError):
    """Raised if an export fails."""


def to_csv(table: "pd.DataFrame", path: Path) -> None:
    """Write the rows of `runs_table`; a text that a spreadsheet would take for a formula gets an apostrophe."""

    def cell(value: Any) -> Any:
        return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@")) else value

    write_file(path, table.map(cell).to_csv(index=False), "--csv")


def to_tensorboard(folders: Iterable[Path], target: Path) -> None:
    """Write each run's curves, configuration and figures as a TensorBoard run below a folder.

    Raises
    ------
    ExportError
        If tensorboard is not installed, or the run is in that folder already.
    """
    writer = _needs("torch.utils.tensorboard").SummaryWriter
    for folder in folders:
        record, curves = read_run(folder), read_curves(folder)
        name = re.sub(r"[^\w .,=+@-]", "_", f"{record.name}-{record.id}").lstrip(".")  # of one folder
        place = Path(target) / (name or "run")
        try:
            with draft_folder(place) as draft, writer(str(draft)) as board:
                for tag, step, value in _points(curves):
                    board.add_scalar(tag, value, step)
                board.add_text("figures", _provenance(record))
                board.add_hparams(_plain(record.configuration), _numbers(record), run_name=".")
        except OSError as error:
            raise ExportError(f"{place} cannot be written ({error.strerror}); export into another folder") from None


def to_mlflow(folders: Iterable[Path], uri: str) -> None:
    """Log each run's configuration, curves, figures and checkpoint to an MLflow tracking server or store.

    Raises
    ------
    ExportError
        If mlflow is not installed, or the server or store does not take them.
    """
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # its own 7 keep a wrong address for four minutes
    mlflow = _needs("mlflow")
    try:
        mlflow.set_tracking_uri(uri)
        mlflow.set_experiment("bttlab")
        for folder in folders:
            _log(mlflow, folder)
    except mlflow.exceptions.MlflowException as error:
        raise ExportError(f"MLflow does not take the runs at {uri}: {str(error).splitlines()[0]}") from None


def _log(mlflow: Any, folder: Path) -> None:
    record = read_run(folder)
    with mlflow.start_run(run_name=f"{record.name}-{record.id}"):
        mlflow.set_tags({"bttlab.id": record.id, "kind": record.kind, "sweep": record.sweep, **record.versions})
        mlflow.log_params(_plain(record.configuration))
        for tag, step, value in _points(read_curves(folder)):
            mlflow.log_metric(tag.replace("/", "."), value, step=step)
        mlflow.log_metrics(_numbers(record))
        mlflow.log_text(_provenance(record), "figures.md")
        checkpoint = folder / Path(record.checkpoint).name
        if record.checkpoint and checkpoint.is_file():
            mlflow.log_artifact(str(checkpoint))


def to_weights(folder: Path, path: Path, best: bool = False) -> str | None:
    """Write the dense model of a run's checkpoint, with what a reader in PyTorch needs beside it.

    Returns
    -------
    str or None
        Why the checkpoint before the last was taken.

    Raises
    ------
    ExportError
        If the run is of a module.
    """
    from safetensors.torch import save

    from bttlab.model import ModelConfig, Transformer
    from bttlab.runs.checkpoint import CheckpointStore

    checkpoint, warning = CheckpointStore(folder).load(best)
    if not isinstance(checkpoint.settings.config, ModelConfig):
        raise ExportError(f"{folder} is of a module of your own: load its checkpoint.safetensors into the class")
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
    return warning


def _needs(module: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise ExportError(f"{missing_package(error, 'this export')}, or export with --csv FILE") from None


def _points(curves: Curves) -> list[tuple[str, int, float]]:
    """Return (tag, samples, value) of every point of a run's curves."""
    points = [("train/loss", round(x), y) for x, y in zip(curves.samples, curves.losses, strict=True)]
    for name, values in curves.scores.items():
        points += [(f"dev/{name}", round(x), y) for x, y in zip(curves.scored, values, strict=True)]
    return points


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value if isinstance(value, int | float | str | bool) else str(value) for key, value in values.items()}


def _numbers(record: RunRecord) -> dict[str, float]:
    return {name: figure["value"] for name, figure in record.figures.items() if figure["value"] is not None}


def _provenance(record: RunRecord) -> str:
    rows = [
        f"| {name} | {figure['value']} | {figure['unit']} | {figure['provenance']} | {figure.get('how', '')} |"
        for name, figure in record.figures.items()
    ]
    return "\n".join(["| figure | value | unit | provenance | how |", "|---|---|---|---|---|", *rows])
