"""Export runs to CSV, and the weights of one."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bttlab.util.errors import BttlabError
from bttlab.util.files import write_file

if TYPE_CHECKING:
    import pandas as pd


def to_csv(table: "pd.DataFrame", path: Path) -> None:
    """Write the rows of `runs_table`; a text that a spreadsheet would take for a formula gets an apostrophe."""

    def cell(value: Any) -> Any:
        return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@")) else value

    write_file(path, table.map(cell).to_csv(index=False), "--csv")


def to_weights(folder: Path, path: Path, best: bool = False) -> str | None:
    """Write the dense model of a run's checkpoint, with what a reader in PyTorch needs beside it.

    Returns the warning of `CheckpointStore.load`. Raises BttlabError if the run is of a module.
    """
    from safetensors.torch import save

    from bttlab.model import ModelConfig, Transformer
    from bttlab.runs.checkpoint import CheckpointStore

    checkpoint, warning = CheckpointStore(folder).load(best)
    if not isinstance(checkpoint.settings.config, ModelConfig):
        raise BttlabError(f"{folder} is of a module of your own: load its checkpoint.safetensors into the class")
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
