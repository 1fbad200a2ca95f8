"""metrics.jsonl: a line of JSON for every epoch, and one for the test at the end."""

import json
import os
from pathlib import Path
from typing import Any

from bttlab.experiments.curves import METRICS
from bttlab.figures import to_json
from bttlab.files import replace_whole, sync_folder
from bttlab.train.files import resume_command
from bttlab.train.settings import RunError


class MetricsLog:
    """The metrics of a run's folder.

    Parameters
    ----------
    folder : path
    """

    def __init__(self, folder: Path):
        self.path = Path(folder) / METRICS

    def rewind(self, epochs_done: int) -> list[dict[str, Any]]:
        """Keep the lines of the finished epochs, one each; what a crash left beyond them, and tests, go.

        Returns
        -------
        list of dict
            The lines kept.
        """
        kept: dict[int, dict[str, Any]] = {}
        try:
            lines = self.path.read_bytes().split(b"\n") if self.path.exists() else []
            for line in lines:
                record = _record(line)
                if record is not None and 1 <= record["epoch"] <= epochs_done:
                    kept.setdefault(record["epoch"], record)
            text = "".join(to_json(record) + "\n" for record in kept.values()).encode()
            if text != b"\n".join(lines):
                replace_whole(self.path, text)
                sync_folder(self.path.parent)
        except OSError as error:
            raise self._fault(error) from None
        return list(kept.values())

    def append(self, record: dict[str, Any]) -> None:
        """Write a line that lasts, or none.

        Raises
        ------
        RunError
            If it cannot be written.
        """
        size = self.path.stat().st_size if self.path.exists() else None
        try:
            with self.path.open("ab") as file:
                file.write((to_json(record) + "\n").encode())
                file.flush()
                os.fsync(file.fileno())
            if size is None:
                sync_folder(self.path.parent)
        except OSError as error:
            if self.path.exists():
                os.truncate(self.path, size or 0)
            raise self._fault(error) from None

    def _fault(self, error: OSError) -> RunError:
        return RunError(
            f"{self.path} cannot be written ({error.strerror}): the run stands as at its last checkpoint; make "
            f"room, or the folder writable, and continue with: {resume_command(self.path.parent)}"
        )


def _record(line: bytes) -> dict[str, Any] | None:
    """An epoch's record, None for any other line."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_epoch = isinstance(record, dict) and record.get("event") == "epoch" and type(record.get("epoch")) is int
    return record if is_epoch else None
