"""metrics.jsonl: a line of JSON for every epoch, or segment of one, and one for the test; curves and last values."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field
from typing_extensions import Required, TypedDict

from bttlab.runs.folder import RunLock, resume_command
from bttlab.runs.record import QuantityDict
from bttlab.runs.scores import SCORES
from bttlab.runs.settings import RunError
from bttlab.util.files import append_line, sync_folder, write_file
from bttlab.util.quantities import measured, to_json
from bttlab.util.reading import open_regular
from bttlab.util.renamed import renamed
from bttlab.util.settings import CONFIG, RecordError, from_json

if not TYPE_CHECKING:
    __getattr__ = renamed(
        __name__, {"METRICS": "METRICS_FILE", "figures_of": "quantities_of", "stretches": "segment_means"}
    )

METRICS_FILE = "metrics.jsonl"
MOST_OF_LINE = 1_000_000  # bytes
SEGMENTS = 100  # of an epoch, whose mean losses are kept
MOST_LINES = 1000  # of metrics.jsonl, whose segments are plotted apart; of more, a curve has one loss each


class Line(TypedDict, total=False):
    __pydantic_config__ = CONFIG  # pyright: ignore[reportGeneralTypeIssues]

    event: Required[Literal["epoch", "segment", "stretch", "test"]]  # "stretch": a segment, of version 0.1
    epoch: int | None
    epochs: int | None
    samples: Annotated[int, Field(ge=1, lt=2**53)] | None
    mean_loss: float | None
    losses: list[float | None]
    dev: dict[str, float | None] | None
    test: dict[str, float | None] | None
    optimizer: str | None
    learning_rate: float | None  # the peak, as set at the end of the line's samples
    first_learning_rate: float | None  # of the line's first sample, and of its last: as the schedule gave them
    last_learning_rate: float | None
    seconds: QuantityDict | None
    samples_per_second: QuantityDict | None
    device: str
    sha256: str  # of version 0.2


def read_lines(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the sound lines of a metrics.jsonl, and what is wrong with the others; OSError if it cannot be read."""
    lines, faults = [], []
    with open_regular(path) as file:
        for number, data in enumerate(iter(partial(file.readline, MOST_OF_LINE), b""), 1):
            if len(data) == MOST_OF_LINE:
                faults.append(
                    f"{METRICS_FILE} is left out from line {number} on: it is longer than {MOST_OF_LINE:,} bytes"
                )
                break
            if data.strip():
                try:
                    lines.append(dict(from_json(Line, data)))
                except (RecordError, RecursionError) as error:
                    faults.append(f"line {number} of {METRICS_FILE} is left out: {error}")
    return lines, faults


class MetricsLog:
    """The metrics of a run's folder, which are read once, in `lines`."""

    def __init__(self, folder: Path):
        self.path = Path(folder) / METRICS_FILE
        self.lines: list[dict[str, Any]] = []
        with self._writing():
            self.lines, faults = read_lines(self.path) if self.path.exists() else ([], [])
        self._is_sound = not faults

    def rewind(self, epochs_done: int) -> None:
        """Keep the lines of the finished epochs, one each; later lines, tests and damaged lines go."""
        kept: dict[int, dict[str, Any]] = {}
        for line in self.lines:
            if line["event"] == "epoch" and line.get("epoch", epochs_done + 1) <= epochs_done:
                kept.setdefault(line["epoch"], line)
        if len(kept) < len(self.lines) or not self._is_sound:
            with self._writing():
                write_file(self.path, "".join(f"{to_json(line)}\n" for line in kept.values()))
                sync_folder(self.path.parent)
        self.lines, self._is_sound = [*kept.values()], True

    def append(self, values: dict[str, Any], lock: RunLock | None = None) -> None:
        """Write a line to disk atomically.

        Raises RunError if it cannot be written, or the folder is another run's now.
        """
        if lock is not None:
            lock.check()
        with self._writing():
            append_line(self.path, to_json(values) + "\n")
        self.lines.append(values)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunError(
                f"{self.path} cannot be read or written ({error.strerror}): the run stands as at its last checkpoint; "
                f"make room, or the folder writable, and continue with: {resume_command(self.path.parent)}"
            ) from None


def quantities_of(lines: Sequence[dict[str, Any]], device: str, samples: int = 0, seconds: float = 0.0) -> dict:
    """Return the last scores, the loss and the training time of metrics as figures.

    `device`, in words, has trained `samples` in `seconds` after the last line. Lines name theirs, but for old ones.
    """
    figures: dict[str, dict[str, Any]] = {}
    done = 0
    for line in lines:
        done += line.get("samples") or 0
        place = line.get("device") or device
        for split in ("dev", "test"):
            scores, how = line.get(split) or {}, f"on the {split} split, after {done:,} samples, on {place}"
            figures |= {f"{split}.{name}": measured(scores[name], "1", how) for name in SCORES if name in scores}
    trained = [line for line in lines if line.get("samples")]
    places = [line.get("device") or device for line in trained]
    if trained and (loss := trained[-1].get("mean_loss")) is not None:
        figures["loss"] = measured(loss, "1", f"mean of the last epoch, on {places[-1]}")
    if done := done + samples:
        seconds += sum((line.get("seconds") or {}).get("value") or 0.0 for line in trained)
        all_places = " and ".join(dict.fromkeys([*places, *([device] if samples else [])]))
        figures["seconds"] = measured(seconds, "s", f"time.perf_counter on the host, around training on {all_places}")
        figures["samples"] = measured(done, "1", "counted")
    return {name: figure for name, figure in figures.items() if figure["value"] is not None}


@dataclass
class Curves:
    """Losses and scores over the samples trained on."""

    samples: list[float] = field(default_factory=list)  # end of each part of the training, and its mean loss
    losses: list[float] = field(default_factory=list)
    scored: list[float] = field(default_factory=list)  # samples trained on when the dev split was scored
    # of the dev split, by name
    scores: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in SCORES})
    faults: list[str] = field(default_factory=list)  # what is left out of metrics.jsonl


def segment_means(losses: np.ndarray) -> list[float]:
    """Return the mean losses of up to 100 nearly equal segments."""
    segments = np.array_split(np.asarray(losses, np.float64), min(SEGMENTS, len(losses)) or 1)
    return [float(segment.mean()) for segment in segments if len(segment)]


def read_curves(folder: Path) -> Curves:
    """Return the curves of a training; empty if there are none."""
    try:
        lines, faults = read_lines(Path(folder) / METRICS_FILE)
    except FileNotFoundError:
        return Curves()
    except OSError as error:
        return Curves(faults=[f"{METRICS_FILE} is left out: {error.strerror}"])
    curves, done = Curves(faults=faults), 0
    lines = [line for line in lines if line.get("samples")]
    for line in lines:
        losses = (line.get("losses") if len(lines) <= MOST_LINES else None) or [line.get("mean_loss")]
        ends = np.linspace(0, line["samples"], len(losses) + 1)[1:] + done
        curves.samples += ends.tolist()
        curves.losses += [np.nan if loss is None else loss for loss in losses]
        done += line["samples"]
        if line.get("dev"):
            curves.scored.append(done)
            for name in SCORES:
                value = line["dev"].get(name)
                curves.scores[name].append(np.nan if value is None else value)
    return curves
