"""Export a dashboard's runs: as text for screen readers, as CSV, as download links."""

import base64
import csv
import io
from collections.abc import Sequence

from bttlab.lab.charts import SMOOTHING, smooth, thinned
from bttlab.lab.comparison import over
from bttlab.lab.dashboard_figure import SCORES, label_of
from bttlab.lab.dashboard_runs import ACCOUNTINGS, DashboardRun
from bttlab.runs.evaluation import scores_in_words

COLUMNS = ("run", "state", "samples", "seconds", "joules", "joules_low", "joules_high", "loss", "mean_of_100")


def describe_runs(runs: Sequence[DashboardRun]) -> str:
    """Return the contents of the dashboard's figure as sentences."""
    if not runs:
        return "Loss, dev split, memory and energy over training: nothing has been started yet."
    said = []
    for number, run in enumerate(runs, 1):
        parts = [f"{label_of(number, run)}: {run.state} after {run.count:,} of {run.total:,} samples"]
        if run.count:
            _, losses, every = run.curve
            mean = losses[-max(1, SMOOTHING // every) :].mean()
            parts.append(f"mean of the last {SMOOTHING} losses {mean:.2f} (measured)")
        if run.scores:
            parts.append(f"on the dev split {scores_in_words(run.scores[-1][1])} (measured)")
        for name, found in run.memory.items():
            parts.append(f"{found.value / 1e6:,.1f} MB {ACCOUNTINGS[name]} ({found.provenance})")
        if run.meter.provenance:
            parts.append(f"{run.meter.joules[1]:,.1f} J ({run.meter.provenance})")
        said.append("; ".join(parts))
    return "Loss, dev split, memory and energy over training. " + ". ".join(said) + "."


def ratios(runs: Sequence[DashboardRun], accounting: str) -> list[str]:
    """Return the ratios of each GPU run to the last run on a U50: energy per sample, and memory in one accounting."""
    card = next((run for run in reversed(runs) if run.published and run.count and run.meter.provenance), None)
    lines = []
    for number, run in enumerate(runs, 1):
        if card is None or run is card or run.published or not (run.count and run.meter.provenance):
            continue
        low, middle, high = over(*([joules / one.count for joules in one.meter.joules] for one in (run, card)))
        provenance = " / ".join(one.meter.provenance for one in (run, card))
        line = f"energy per sample: {run.name} / {card.name} = {middle:.2g} x ({low:.2g} to {high:.2g}; {provenance})"
        if accounting in run.memory and accounting in card.memory:
            there, here = run.memory[accounting], card.memory[accounting]
            line += (
                f"; memory: {there.value / 1e6:,.1f} MB / {here.value / 1e6:,.1f} MB = {there.value / here.value:.2g} x"
            )
            band = "" if there.low is None else f"{there.low / here.value:.2g} to {there.high / here.value:.2g}; "
            line += f" ({band}{there.provenance} / {here.provenance})"
        lines.append(f"{number}: {line}")
    return [*lines, str(card.published)] if card else []


def curves_csv(runs: Sequence[DashboardRun]) -> str:
    """Return the runs' curves as CSV: a line for each point of a loss curve, and for each scoring of the dev split."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([*COLUMNS, *(name for name, _, _ in SCORES)])
    for number, run in enumerate(runs, 1):
        (ends, losses, every), scores = run.curve, dict(run.scores)
        means, shown = smooth(losses, max(1, SMOOTHING // every)), thinned(losses)
        rows = {int(ends[k]): [float(losses[k]), float(means[k])] for k in shown}
        history = {count: values for count, *values in run.history if run.meter.provenance}
        counts = sorted({*rows, *scores})
        for count, seconds in zip(counts, run.at(counts, "time"), strict=True):
            values = [scores[count].get(name, "") if count in scores else "" for name, _, _ in SCORES]
            _, low, middle, high, _ = history.get(count, [""] * 5)
            joules, loss = (middle, low, high), rows.get(count, [""] * 2)
            writer.writerow([label_of(number, run), run.state, count, f"{seconds:.6g}", *joules, *loss, *values])
    return text.getvalue()


def download_link(name: str, kind: str, content: bytes) -> str:
    """Return a link that hands out a file."""
    data = base64.b64encode(content).decode()
    return f"<a download='{name}' href='data:{kind};base64,{data}' style='margin-left:1em'>{name}</a>"
