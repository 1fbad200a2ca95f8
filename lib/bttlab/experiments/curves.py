"""A run's curves and figures, from the metrics.jsonl in its folder."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bttlab.figures import measured
from bttlab.files import read_regular

METRICS = "metrics.jsonl"
STRETCHES = 100  # of an epoch at most, whose mean losses are kept
MOST_BYTES = 1 << 31  # of metrics.jsonl: a month of epochs of three seconds
MOST_LINES = 1000  # of metrics.jsonl, whose stretches are told apart; of more, a curve has one loss each
SCORES = ("intent_accuracy", "slot_f1", "frame_accuracy", "mean_loss")


@dataclass
class Curves:
    """Losses and scores over the samples trained on.

    Attributes
    ----------
    samples, losses : list of float
        Where a stretch of training ended, and its mean loss.
    scored : list of float
        Samples trained on when the dev split was scored.
    scores : dict of str to list of float
        Of the dev split, by name.
    """

    samples: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    scored: list[float] = field(default_factory=list)
    scores: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in SCORES})


def stretches(losses: np.ndarray) -> list[float]:
    """Return the mean losses of up to 100 stretches, as equal as can be."""
    parts = np.array_split(np.asarray(losses, np.float64), min(STRETCHES, len(losses)) or 1)
    return [float(part.mean()) for part in parts if len(part)]


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's metrics.jsonl that can be read; none if there is no such file."""
    try:
        text = read_regular(Path(folder) / METRICS, MOST_BYTES).decode("utf-8", errors="replace")
    except OSError:
        return []
    records = []
    for line in text.splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            records.append(record)
    return records


def read_curves(folder: Path) -> Curves:
    """Return the curves of a training, or of a baseline by its record; empty where there are none that can be read."""
    try:
        return _read_curves(Path(folder))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return Curves()


def _read_curves(folder: Path) -> Curves:
    curves, done = Curves(), 0
    lines = read_metrics(folder)
    for line in lines:
        count = line.get("samples")
        if not isinstance(count, int):
            continue
        fine = line.get("losses") if len(lines) <= MOST_LINES else None
        losses = fine or [line.get("mean_loss")]
        ends = np.linspace(0, count, len(losses) + 1)[1:] + done
        curves.samples += ends.tolist()
        curves.losses += [np.nan if loss is None else float(loss) for loss in losses]
        done += count
        if isinstance(line.get("dev"), dict):
            curves.scored.append(done)
            for name in SCORES:
                value = line["dev"].get(name)
                curves.scores[name].append(np.nan if value is None else float(value))
    record = folder / "record.json"
    if not curves.samples and record.is_file():
        values = json.loads(read_regular(record, MOST_BYTES))
        losses = values["modes"][values["best"]]["losses"]
        curves.losses = stretches(losses)
        curves.samples = np.linspace(0, len(losses), len(curves.losses) + 1)[1:].tolist()
    return curves


def figures_of(lines: Sequence[dict[str, Any]], device: str) -> dict[str, dict[str, Any]]:
    """Return the last scores, the loss and the training time of a run's metrics as figures.

    Parameters
    ----------
    lines : sequence of dict
        From `read_metrics`.
    device : str
        What trained, in words.
    """
    figures: dict[str, dict[str, Any]] = {}
    stretches = [line for line in lines if isinstance(line.get("samples"), int)]
    done = 0
    for line in lines:
        done += line["samples"] if isinstance(line.get("samples"), int) else 0
        for split in ("dev", "test"):
            if isinstance(line.get(split), dict):
                how = f"on the {split} split, after {done:,} samples, on {device}"
                names = [name for name in SCORES if line[split].get(name) is not None]
                figures |= {f"{split}.{name}": measured(line[split][name], "1", how) for name in names}
    if stretches:
        seconds = [line["seconds"]["value"] for line in stretches if isinstance(line.get("seconds"), dict)]
        samples = sum(line["samples"] for line in stretches)
        figures["loss"] = measured(stretches[-1].get("mean_loss"), "1", f"mean of the last epoch, on {device}")
        how = f"time.perf_counter on the host, around training on {device}"
        figures["seconds"] = measured(sum(seconds), "s", how)
        figures["samples"] = measured(samples, "1", "counted")
    return figures
