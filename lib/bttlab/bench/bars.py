"""Bars of times with their quartiles."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from bttlab.bench.result import in_digits
from bttlab.lab.charts import PALETTE, new_figure, style


def draw_times(rows: Sequence[dict[str, Any]], series: str, title: str, label: str) -> Figure:
    """Draw the time of each contender, logarithmic, a bar for each value of the column `series`."""
    names = list(dict.fromkeys(row["contender"] for row in rows))
    kinds = list(dict.fromkeys(row[series] for row in rows))
    figure = new_figure(8.5, 1.2 + 0.22 * (len(kinds) + 1) * len(names))
    axes = figure.subplots()
    style(axes, title, label, "")
    height = 0.8 / len(kinds)
    for number, kind in enumerate(kinds):
        chosen = [row for row in rows if row[series] == kind]
        places = [names.index(row["contender"]) + (number - (len(kinds) - 1) / 2) * height for row in chosen]
        times = [row["time"] for row in chosen]
        medians = [time["median"] for time in times]
        errors = [
            [time["median"] - time["lower_quartile"] for time in times],
            [time["upper_quartile"] - time["median"] for time in times],
        ]
        axes.barh(places, medians, height, xerr=errors, color=PALETTE[number], label=f"{series}: {kind}", capsize=2)
        for place, time in zip(places, times, strict=True):
            text = in_digits(time["median"])
            axes.annotate(
                text, (time["upper_quartile"], place), (5, 0), textcoords="offset points", va="center", fontsize=8
            )
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.margins(x=0.15)
    axes.legend(fontsize=8, frameon=False)
    return figure
