"""run.json: configuration, software, device and end of a run, and its figures with their provenance."""

import platform
import subprocess
import uuid
from dataclasses import asdict, field
from datetime import datetime, timezone
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import ConfigDict, Field
from typing_extensions import NotRequired, TypedDict

import bttlab
from bttlab.util.errors import BttlabError
from bttlab.util.files import write_file
from bttlab.util.locks import is_held
from bttlab.util.places import INSTALLED, ROOT
from bttlab.util.quantities import to_json
from bttlab.util.reading import MOST_OF_SETTINGS, parse_json, read_bytes
from bttlab.util.renamed import renamed
from bttlab.util.settings import RecordError, from_values, settings

if not TYPE_CHECKING:
    __getattr__ = renamed(__name__, {"Figure": "QuantityDict"})

RUN_FILE, LATEST = "run.json", "checkpoint.safetensors"
FORMAT = 1
MOST_KEYS = 1000  # of a configuration, and of the figures: each is a column of the table of runs
RUNNING, COMPLETE, STOPPED, FAILED = "running", "complete", "stopped", "failed"
PRUNED = "pruned"  # a trial of a sweep that ended early, because others are better
INTERRUPTED = "interrupted"  # a running one whose process has gone
PACKAGES = ("torch", "numpy", "safetensors", "pynq", "dask", "distributed")


class QuantityDict(TypedDict):
    """A number with unit and provenance, as `bttlab.util.quantities.measured` gives it; old ones have a `model`."""

    __pydantic_config__ = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)  # pyright: ignore[reportGeneralTypeIssues]

    value: float | None
    unit: str
    provenance: str | None
    how: NotRequired[str]
    low: NotRequired[float | None]
    high: NotRequired[float | None]
    model: NotRequired[str]


@settings(RecordError)
class GitState:
    """The commit of a checkout, and whether tracked files differ from it."""

    commit: str
    changed: bool


@settings(RecordError, frozen=False)
class RunRecord:
    """The record of a run, run.json in its folder: settings, device, times and figures.

    Attributes
    ----------
    kind : str
        "training" or "estimate"; of older versions "baseline" and "methods", too.
    name : str
        Of the run.
    configuration : dict
        Settings in one level, JSON-ready.
    device : str
        Description.
    id : str
        Hexadecimal: of trials a digest of the configuration, else random.
    status : {"running", "complete", "stopped", "failed", "pruned"}
        What became of it; `read_run` returns "interrupted" for one without a process.
    error : str
        Why it failed or was pruned, in a sentence.
    begun, ended : str
        ISO 8601, UTC; `ended` is empty while it runs.
    corpus : dict of str to str
        "name" and "sha256".
    versions : dict of str to str
        Package to version.
    git : GitState or None
        Of the checkout that ran; None outside of one.
    figures : dict of str to dict
        Name to value, unit, provenance and how.
    checkpoint : str
        File in the run's folder, or empty.
    sweep : str
        Name of the sweep that the run is a trial of, or empty.
    """

    kind: str
    name: str
    configuration: Annotated[dict[str, Any], Field(max_length=MOST_KEYS)]
    device: str
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    status: str = RUNNING
    error: str = ""
    begun: str = field(default_factory=lambda: now())
    ended: str = ""
    corpus: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    git: GitState | None = None
    figures: Annotated[dict[str, QuantityDict], Field(max_length=MOST_KEYS)] = field(default_factory=dict)
    checkpoint: str = ""
    sweep: str = ""

    def end(self, status: str, error: str = "") -> None:
        self.status, self.error, self.ended = status, error, now()

    def fail(self, error: BaseException) -> None:
        self.end(FAILED, str(error) if isinstance(error, BttlabError) else f"{type(error).__name__}: {error}")

    def value(self, key: str) -> Any:
        """Return the value of a figure, or of the configuration, or None."""
        return self.figures[key]["value"] if key in self.figures else self.configuration.get(key)

    def write(self, folder: Path) -> None:
        """Write run.json: whole, or not at all; OSError if it cannot be written."""
        write_file(Path(folder) / RUN_FILE, to_json({"format": FORMAT} | asdict(self), indent=1) + "\n")


def read_run(folder: Path) -> RunRecord:
    """Read a run's record; one that has status "running" without a process is "interrupted".

    Parameters
    ----------
    folder : path
        Of the run.

    Returns
    -------
    RunRecord
        What its run.json has.

    Raises
    ------
    RecordError
        If the folder has none, or it is damaged.
    """
    path = Path(folder) / RUN_FILE
    try:
        values = parse_json(read_bytes(path, MOST_OF_SETTINGS))
        if not isinstance(values, dict) or values.pop("format", None) != FORMAT:
            raise RecordError(f"it is not of format {FORMAT}, which this bttlab reads")
        values.pop("sha256", None)  # of version 0.2
        record = from_values(RunRecord, values)
    except OSError as error:
        raise RecordError(f"{path} cannot be read ({error.strerror}); name the folder of a run") from None
    except (ValueError, RecordError) as error:
        raise RecordError(f"{path} is no record of a run ({error}); delete it, or repeat the run") from None
    if record.status == RUNNING and not is_held(path.parent):
        record.status = INTERRUPTED
    return record


def now() -> str:
    """Return the time, ISO 8601, UTC."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


@cache
def versions() -> dict[str, str]:
    """Return the versions of bttlab, Python and the packages that may change a run's bits."""
    installed = {"bttlab": bttlab.__version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return installed


@cache
def git_state() -> GitState | None:
    """Return the state of bttlab's checkout; None outside of one."""
    if INSTALLED:
        return None
    try:
        commit = _git("rev-parse", "HEAD")
        return GitState(commit=commit, changed=bool(_git("status", "--porcelain", "--untracked-files=no")))
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
