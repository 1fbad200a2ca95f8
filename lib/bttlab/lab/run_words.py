"""A dashboard's runs in words: for screen readers, and as ratios to the card."""

from collections.abc import Sequence

from bttlab.lab.charts import SMOOTHING
from bttlab.lab.comparison import over
from bttlab.lab.dashboard_figure import label_of
from bttlab.lab.dashboard_runs import ACCOUNTINGS, DashboardRun
from bttlab.runs.evaluation import scores_in_words


def describe_runs(runs: Sequence[DashboardRun]) -> str:
    """Return the contents of the dashboard's figure as sentences."""
    if not runs:
        return "Loss, dev split, memory and energy over training: nothing has been started yet."
    said = []
    for number, run in enumerate(runs, 1):
        parts = [f"{label_of(number, run)}: {run.state} after {run.count:,} of {run.total:,} samples"]
        if run.count:
            mean = run.losses[-SMOOTHING:].mean()
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
