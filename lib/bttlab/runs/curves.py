"""The curves of a run."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bttlab.runs.metrics import METRICS, SCORES, read_lines

STRETCHES = 100  # parts of an epoch whose mean losses are kept
MOST_LINES = 1000  # of metrics.jsonl, whose stretches are plotted apart; of more, a curve has one loss each


@dataclass
class Curves:
    """Losses and scores over the samples trained on."""

    samples: list[float] = field(default_factory=list)  # end of each part of the training, and its mean loss
    losses: list[float] = field(default_factory=list)
    scored: list[float] = field(default_factory=list)  # samples trained on when the dev split was scored
    # of the dev split, by name
    scores: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in SCORES})
    faults: list[str] = field(default_factory=list)  # what is left out of metrics.jsonl


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


def read_curves(folder: Path) -> Curves:
    """Return the curves of a training; empty if there are none."""
    try:
        found = list(read_lines(Path(folder) / METRICS))
    except OSError:
        return Curves()
    curves, done = Curves(faults=[fault for _, fault in found if fault]), 0
    lines = [line for line, _ in found if line and line.get("samples")]
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
    curves.samples, curves.losses = even(curves.samples, curves.losses)
    return curves
