"""The curves of a run."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bttlab.runs.metrics import METRICS, read_lines
from bttlab.runs.scores import SCORES

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


def read_curves(folder: Path) -> Curves:
    """Return the curves of a training; empty if there are none."""
    try:
        lines, faults = read_lines(Path(folder) / METRICS)
    except OSError:
        return Curves()
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
