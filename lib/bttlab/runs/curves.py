"""Read metrics.jsonl: the curves and figures of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from bttlab.util.files import read_regular
from bttlab.util.json_files import JsonError, load_json, without_checksum
from bttlab.util.quantities import measured

METRICS = "metrics.jsonl"
STRETCHES = 100  # parts of an epoch whose mean losses are kept
MOST_BYTES = 1 << 31  # of metrics.jsonl: a month of epochs of three seconds
MOST_LINES = 1000  # of metrics.jsonl, whose stretches are plotted apart; of more, a curve has one loss each
MOST_NODES = 10_000  # of a line
MOST_BASELINE = 3_000_000  # nodes of a baseline's record, which has every loss
KEYS = {"event", "epoch", "epochs", "samples", "mean_loss", "losses", "dev", "test", "optimizer", "learning_rate"}
KEYS |= {"seconds", "samples_per_second", "device"}
SCORES = ("intent_accuracy", "slot_f1", "frame_accuracy", "perplexity", "mean_loss")
COUNTED = ("samples", "loss", *(f"{split}.{name}" for split in ("dev", "test") for name in SCORES))


@dataclass
class Curves:
    """Losses and scores over the samples trained on."""

    samples: list[float] = field(default_factory=list)  # end of each part of the training, and its mean loss
    losses: list[float] = field(default_factory=list)
    scored: list[float] = field(default_factory=list)  # samples trained on when the dev split was scored
    # of the dev split, by name
    scores: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in SCORES})
    faults: list[str] = field(default_factory=list)  # of metrics.jsonl, as `metrics_faults` returns them


def stretches(losses: np.ndarray) -> list[float]:
    """Return the mean losses of up to 100 nearly equal parts."""
    parts = np.array_split(np.asarray(losses, np.float64), min(STRETCHES, len(losses)) or 1)
    return [float(part.mean()) for part in parts if len(part)]


def even(ends: Sequence[float], losses: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return a curve in parts as long as its longest: means of unequal parts look noisier where they are short.

    Parameters
    ----------
    ends : sequence of float
        Samples trained on at the end of each part.
    losses : sequence of float
        Mean of each.
    """
    lengths = np.diff(np.asarray(ends, np.float64), prepend=0.0)
    if len(lengths) < 2 or lengths.max() < 1.5 * lengths.min() or not np.isfinite(losses).all():
        return list(ends), list(losses)
    edges = np.linspace(0, ends[-1], int(ends[-1] / lengths.max()) + 1)
    sums = np.interp(edges, [0, *ends], np.concatenate([[0.0], np.cumsum(lengths * losses)]))
    return edges[1:].tolist(), (np.diff(sums) / np.diff(edges)).tolist()


def parse_metrics(data: bytes) -> tuple[list[dict[str, Any]], list[str]]:
    """Read the content of a metrics.jsonl.

    Returns
    -------
    lines : list of dict
        Those that are as they were written, without their checksums.
    faults : list of str
        What is left out or unchecked, in words.
    """
    lines, faults, unchecked = [], [], 0
    for number, text in enumerate(data.split(b"\n"), 1):
        if not text:
            continue
        try:
            values = load_json(text, MOST_NODES)
            line, checked = without_checksum(values if isinstance(values, dict) else {})
            if not checked and not line.keys() <= KEYS:
                raise JsonError("it has neither a checksum nor the keys of a line without one")
        except JsonError as error:
            faults.append(f"line {number} of {METRICS} is left out: {error}")
        else:
            lines.append(line)
            unchecked += not checked
    if unchecked:
        faults.append(f"{unchecked} lines of {METRICS} have no checksum: an older bttlab wrote them")
    return lines, faults


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's metrics.jsonl that are as they were written; none if there is no such file."""
    return _parse_file(folder)[0]


def metrics_faults(folder: Path, figures: Mapping[str, dict[str, Any]] = MappingProxyType({})) -> list[str]:
    """Return what `read_metrics` leaves out of a run's metrics.jsonl, in words.

    Parameters
    ----------
    figures : mapping, optional
        Of the run's record: lines that give others, as those of a file cut between two lines do, are a fault.
    """
    lines, faults = _parse_file(folder)
    found = figures_of(lines, "")
    for name, figure in figures.items():
        if name in COUNTED and figure["value"] != found.get(name, {}).get("value"):
            value = figure["value"]  # of a forged record, anything
            shown = f"{value:.6g}" if isinstance(value, int | float) else repr(value)
            faults.append(f"{METRICS} does not give the run's {name}, {shown}: lines are missing")
    return faults


def _parse_file(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    try:
        return parse_metrics(read_regular(Path(folder) / METRICS, MOST_BYTES))
    except OSError:
        return [], []


def read_curves(folder: Path) -> Curves:
    """Return the curves of a training or a baseline; empty if none can be read."""
    try:
        return _read_curves(Path(folder))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return Curves()


def _read_curves(folder: Path) -> Curves:
    curves, done = Curves(), 0
    lines, curves.faults = _parse_file(folder)
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
    curves.samples, curves.losses = even(curves.samples, curves.losses)
    record = folder / "record.json"
    if not curves.samples and record.is_file():
        values = load_json(read_regular(record, 1 << 26), MOST_BASELINE)
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
        Description of the device.
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
