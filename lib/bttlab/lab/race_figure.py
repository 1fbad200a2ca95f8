"""A race as a figure: loss, slot F1, energy and memory over the time of each racer's own clock."""

import itertools
import time

from IPython.display import DisplayHandle

from bttlab.lab.charts import NUMBERS, PALETTE, legend_below, new_figure, style
from bttlab.lab.picture import Picture
from bttlab.runs.race import Race, Racer

REFRESH_SECONDS = 1.0
SIZE = (9.6, 5.4)  # inches


def watch_race(race: Race) -> Race:
    """Run a race, and draw it while it runs; an interrupt ends it where it is.

    Parameters
    ----------
    race : Race
        That has not begun.

    Returns
    -------
    Race
        The same, with its results.
    """
    shown, drawn = DisplayHandle(), 0.0
    shown.display(draw_race(race))
    try:
        for _ in race.laps():
            if time.monotonic() - drawn > REFRESH_SECONDS:
                shown.update(draw_race(race))
                drawn = time.monotonic()
    except KeyboardInterrupt:
        pass
    shown.update(draw_race(race))
    return race


def draw_race(race: Race) -> Picture:
    """Draw the racers that have started: a line each; a dot where the target was reached.

    Parameters
    ----------
    race : Race
        That runs or has ended.

    Returns
    -------
    Picture
        The lines.
    """
    figure = new_figure(*SIZE)
    panels = figure.subplots(2, 2, sharex=True).ravel()
    titles = "Loss, mean of a lap (measured)", "Slot F1 on dev (measured)", "Energy, J", "Memory, MB"
    for axes, title in zip(panels, titles, strict=True):
        style(axes, title, "", "")
        axes.set_xscale("log")
        axes.margins(x=0.08, y=0.12)
    for axes in panels[2:]:
        axes.set_xlabel("seconds of training, on each racer's own clock")
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(NUMBERS)
    panels[0].xaxis.set_major_formatter(NUMBERS)
    panels[1].axhline(race.setting.target, color="0.5", linewidth=0.8, linestyle="--")
    for racer, colour in zip(race.racers, itertools.cycle(PALETTE), strict=False):
        if racer.laps:
            _draw(race, racer, panels, colour)
    if any(racer.laps for racer in race.racers):
        legend_below(figure, ncols=1)
    return Picture(figure, "A race: loss, slot F1, energy and memory of each racer over its time.")


def _draw(race: Race, racer: Racer, panels, colour: str) -> None:
    seconds = [lap.seconds for lap in racer.laps]
    values = (
        [lap.loss for lap in racer.laps],
        [lap.slot_f1 for lap in racer.laps],
        [lap.joules[1] for lap in racer.laps if lap.joules],
        [(racer.memory.value or 0.0) / 1e6] * len(seconds),
    )
    for axes, row in zip(panels, values, strict=True):
        if row:
            axes.plot(seconds, row, color=colour, linewidth=2, label=_label(racer) if row is values[0] else "")
            if race.reached(racer):
                axes.plot(seconds[-1], row[-1], "o", color=colour)
    panels[3].annotate(
        f"{values[3][0]:,.0f} MB {racer.counted}",
        (seconds[-1], values[3][0]),
        (-4, 4),
        textcoords="offset points",
        ha="right",
        fontsize=8,
        color=colour,
    )
    if racer.laps[-1].joules:
        low, _, high = zip(*(lap.joules for lap in racer.laps if lap.joules), strict=True)
        panels[2].fill_between(seconds, low, high, color=colour, alpha=0.15, linewidth=0)


def _label(racer: Racer) -> str:
    energy = "no energy meter" if racer.energy.value is None else f"energy {racer.energy.provenance}"
    memory = f"memory {racer.memory.provenance} ({racer.counted})"
    return f"{racer.device}: time {racer.time.provenance}, {energy}, {memory}"
