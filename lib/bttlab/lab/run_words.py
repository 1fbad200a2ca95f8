"""A dashboard's runs in words, for who cannot see the figure, and as a table, for who wants to draw another one."""

import base64
import csv
import io
from collections.abc import Sequence
from dataclasses import asdict

from bttlab.lab.charts import thinned
from bttlab.lab.run_figure import SCORES, label_of
from bttlab.lab.runs import Run

COLUMNS = ("run", "state", "samples", "seconds", "joules", "joules_low", "joules_high", "loss", "mean_of_100")


def in_words(runs: Sequence[Run]) -> str:
    """Return what the dashboard's figure shows, in sentences."""
    if not runs:
        return "Loss, dev split, memory and energy over training: nothing has been started yet."
    said = []
    for number, run in enumerate(runs, 1):
        parts = [f"{label_of(number, run)}: {run.state} after {run.count:,} of {run.total:,} samples"]
        if run.count:
            parts.append(f"mean of the last 100 losses {run.curve[2][-1]:.2f} (measured)")
        if run.scores:
            values = asdict(run.scores[-1][1])
            scores = ", ".join(f"{label} {values[name]:.1%}" for name, label, _ in SCORES)
            parts.append(f"on the dev split {scores} (measured)")
        if run.memory is not None:
            parts.append(f"{run.memory.value / 1e6:,.1f} MB ({run.memory.provenance})")
        if run.meter.provenance:
            parts.append(f"{run.meter.joules:,.1f} J ({run.meter.provenance})")
        if run.published:
            parts.append(f"beside it, {run.published}")
        said.append("; ".join(parts))
    return "Loss, dev split, memory and energy over training. " + ". ".join(said) + "."


def curves_csv(runs: Sequence[Run]) -> str:
    """Return the runs' curves as CSV: a line for each point of a loss curve, and for each scoring of the dev split."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([*COLUMNS, *(name for name, _, _ in SCORES)])
    for number, run in enumerate(runs, 1):
        (counts, losses, means), scores = run.curve, dict(run.scores)
        shown = thinned(counts)
        rows = {int(counts[k]): [float(losses[k]), float(means[k])] for k in shown}
        energy = {point[0]: point[1:] for point in run.energy}
        seconds = run.at(sorted({*rows, *scores}), "time")
        for count, second in zip(sorted({*rows, *scores}), seconds, strict=True):
            values = [getattr(scores[count], name) for name, _, _ in SCORES] if count in scores else [""] * len(SCORES)
            joules, loss = energy.get(count, [""] * 3), rows.get(count, [""] * 2)
            writer.writerow([label_of(number, run), run.state, count, f"{second:.6g}", *joules, *loss, *values])
    return text.getvalue()


def download(name: str, kind: str, content: bytes) -> str:
    """Return a link that hands out a file."""
    data = base64.b64encode(content).decode()
    return f"<a download='{name}' href='data:{kind};base64,{data}' style='margin-left:1em'>{name}</a>"
