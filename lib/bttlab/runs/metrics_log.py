"""metrics.jsonl: a line of JSON with its checksum for every epoch, and one for the test at the end."""

from pathlib import Path
from typing import Any

from bttlab.runs.curves import METRICS, MOST_BYTES, parse_metrics
from bttlab.runs.files import resume_command
from bttlab.runs.settings import RunError
from bttlab.util.files import append_line, read_regular, sync_folder, write_file
from bttlab.util.json_files import with_checksum
from bttlab.util.quantities import to_json


class MetricsLog:
    """The metrics of a run's folder."""

    def __init__(self, folder: Path):
        self.path = Path(folder) / METRICS

    def rewind(self, epochs_done: int) -> list[dict[str, Any]]:
        """Keep the lines of the finished epochs, one each; later lines, tests and damaged lines go.

        Returns
        -------
        list of dict
            The lines kept.
        """
        kept: dict[int, dict[str, Any]] = {}
        try:
            data = read_regular(self.path, MOST_BYTES) if self.path.exists() else b""
            for line in parse_metrics(data)[0]:
                if line.get("event") == "epoch" and type(line.get("epoch")) is int and line["epoch"] <= epochs_done:
                    kept.setdefault(line["epoch"], line)
            text = "".join(map(_line, kept.values())).encode()
            if text != data:
                write_file(self.path, text)
                sync_folder(self.path.parent)
        except OSError as error:
            raise self._fault(error) from None
        return list(kept.values())

    def append(self, record: dict[str, Any]) -> None:
        """Write a line to disk, whole or not at all.

        Raises
        ------
        RunError
            If it cannot be written.
        """
        try:
            append_line(self.path, _line(record))
        except OSError as error:
            raise self._fault(error) from None

    def _fault(self, error: OSError) -> RunError:
        return RunError(
            f"{self.path} cannot be written ({error.strerror}): the run stands as at its last checkpoint; make "
            f"room, or the folder writable, and continue with: {resume_command(self.path.parent)}"
        )


def _line(record: dict[str, Any]) -> str:
    return to_json(with_checksum(record)) + "\n"
