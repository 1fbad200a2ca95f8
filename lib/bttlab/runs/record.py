"""run.json: configuration, software, device and end of a run, and its figures with their provenance.

The folder of a run is authoritative; the index (`bttlab.runs.index`) only finds it.
"""

import uuid
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from bttlab.util.errors import BttlabError
from bttlab.util.files import read_regular, write_file
from bttlab.util.json_files import load_json, with_checksum, without_checksum
from bttlab.util.quantities import to_json
from bttlab.util.records import RecordError, build

RUN_FILE, LATEST = "run.json", "checkpoint.safetensors"
FORMAT = 1
MOST_BYTES = 1 << 22  # of a record
RUNNING, COMPLETE, STOPPED, FAILED = "running", "complete", "stopped", "failed"
INTERRUPTED = "interrupted"  # a running one whose process has gone


@dataclass(frozen=True)
class GitState:
    """The commit of a checkout, and whether tracked files differ from it."""

    commit: str
    changed: bool


@dataclass
class RunRecord:
    """Record of a run.

    Attributes
    ----------
    kind : {"training", "baseline", "estimate", "methods"}
    configuration : dict
        Settings in one level, JSON-ready.
    device : str
        Description.
    id : str
        Hexadecimal: of trials and estimates a digest of the configuration, else random.
    status : {"running", "complete", "stopped", "failed"}
    error : str
        Why it failed, in a sentence.
    begun, ended : str
        ISO 8601, UTC; `ended` is empty while it runs.
    corpus : dict
        "name" and "sha256".
    versions : dict
        Package to version.
    git : GitState or None
        Of the checkout that ran; None outside of one.
    figures : dict
        Name to value, unit, provenance and how, as `bttlab.util.quantities.measured` gives them.
    checkpoint : str
        File in the run's folder; empty if there is none.
    sweep : str
        Name of the sweep that the run is a trial of, or empty.
    """

    kind: str
    name: str
    configuration: dict[str, Any]
    device: str
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    status: str = RUNNING
    error: str = ""
    begun: str = field(default_factory=lambda: now())
    ended: str = ""
    corpus: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    git: GitState | None = None
    figures: dict[str, dict[str, Any]] = field(default_factory=dict)
    checkpoint: str = ""
    sweep: str = ""

    def end(self, status: str, error: str = "") -> None:
        """Set the status and the time of the end."""
        self.status, self.error, self.ended = status, error, now()

    def value(self, key: str) -> Any:
        """Return the value of a figure, or of the configuration, or None."""
        return self.figures[key]["value"] if key in self.figures else self.configuration.get(key)

    def to_json(self) -> str:
        """Return the content of run.json."""
        return to_json(with_checksum({"format": FORMAT} | asdict(self)), indent=1)

    @classmethod
    def from_json(cls, text: str | bytes) -> "RunRecord":
        """Build a record from `to_json`'s result.

        Raises
        ------
        JsonError, RecordError
            If it is none, or was changed since it was written.
        """
        values = load_json(text)
        values, _ = without_checksum(values if isinstance(values, dict) else {})
        if values.pop("format", None) != FORMAT:
            raise RecordError(f"it is not of format {FORMAT}, which this bttlab reads")
        record = build(cls, values, "")
        for name, figure in record.figures.items():
            if not {"value", "unit", "provenance"} <= set(figure):
                raise RecordError(f"figures.{name} is {figure!r}, it must have a value, a unit and a provenance")
        return record

    def write(self, folder: Path) -> None:
        """Write run.json: whole, or not at all.

        Raises
        ------
        OSError
            If it cannot be written.
        """
        path = Path(folder) / RUN_FILE
        write_file(path, self.to_json() + "\n")


def read_run(folder: Path) -> RunRecord:
    """Read a run's record.

    Raises
    ------
    RecordError
        If the folder has none, or it is damaged.
    """
    path = Path(folder) / RUN_FILE
    try:
        return RunRecord.from_json(read_regular(path, MOST_BYTES))
    except OSError as error:
        raise RecordError(f"{path} cannot be read ({error.strerror}); name the folder of a run") from None
    except BttlabError as error:
        raise RecordError(f"{path} is no record of a run ({error}); delete it, or repeat the run") from None


def now() -> str:
    """Return the time, ISO 8601, UTC."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
