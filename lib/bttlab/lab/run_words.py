"""A dashboard's runs in words: for screen readers, and as ratios to the card."""

from collections.abc import Sequence
from html import escape

from bttlab.lab.charts import SMOOTHING
from bttlab.lab.comparison import over
from bttlab.lab.dashboard_figure import coloured
from bttlab.lab.dashboard_runs import ACCOUNTINGS, DashboardRun
from bttlab.lab.picture import SWATCH_CLASS
from bttlab.runs.scores import scores_in_words


def _label(number: int, run: DashboardRun) -> str:
    if run.meter.provenance == run.time_provenance:
        known = f"time and energy {run.time_provenance}"
    else:
        energy = f"energy {run.meter.provenance}" if run.meter.provenance else "no energy"
        known = f"time {run.time_provenance}, {energy}"
    return f"{number} {run.name}, {run.setting}; {known}"


def legend(runs: Sequence[DashboardRun]) -> str:
    """Return what the colours and numbers of the figure are, as HTML."""
    look = "display:inline-block;width:1.3em;height:3px;vertical-align:middle;margin-right:6px;background:"
    return "".join(
        f"<div style='line-height:1.35'><span class='{SWATCH_CLASS}' style='{look}{colour}'></span>"
        f"{escape(_label(number, run))}</div>"
        for number, (run, colour) in enumerate(coloured(runs), 1)
    )


def describe_runs(runs: Sequence[DashboardRun]) -> str:
    if not runs:
        return "Loss, dev split, memory and energy over training: nothing has been started yet."
    said = []
    for number, run in enumerate(runs, 1):
        parts = [f"{_label(number, run)}: {run.state} after {run.count:,} of {run.total:,} samples"]
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
        low, middle, high = over(*([joules / side.count for joules in side.meter.joules] for side in (run, card)))
        provenance = " / ".join(side.meter.provenance for side in (run, card))
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
