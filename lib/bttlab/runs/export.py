"""Export runs to CSV and TensorBoard, and the weights of one."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bttlab.runs.curves import read_curves
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
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError as error:
        raise ExportError(f"{missing_package(error, 'this export')}, or export with --csv FILE") from None
    for folder in folders:
        record, curves = read_run(folder), read_curves(folder)
        name = re.sub(r"[^\w .,=+@-]", "_", f"{record.name}-{record.id}").lstrip(".")  # of one folder
        place = Path(target) / (name or "run")
        settings = {key: one if isinstance(one, int | float) else str(one) for key, one in record.configuration.items()}
        figures = {key: one["value"] for key, one in record.figures.items() if one["value"] is not None}
        try:
            with draft_folder(place) as draft, SummaryWriter(str(draft)) as board:
                for step, loss in zip(curves.samples, curves.losses, strict=True):
                    board.add_scalar("train/loss", loss, round(step))
                for key, values in curves.scores.items():
                    for step, value in zip(curves.scored, values, strict=True):
                        board.add_scalar(f"dev/{key}", value, round(step))
                board.add_text("figures", _provenance(record))
                board.add_hparams(settings, figures, run_name=".")
        except OSError as error:
            raise ExportError(f"{place} cannot be written ({error.strerror}); export into another folder") from None


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


def _provenance(record: RunRecord) -> str:
    rows = [
        f"| {name} | {figure['value']} | {figure['unit']} | {figure['provenance']} | {figure.get('how', '')} |"
        for name, figure in record.figures.items()
    ]
    return "\n".join(["| figure | value | unit | provenance | how |", "|---|---|---|---|---|", *rows])
