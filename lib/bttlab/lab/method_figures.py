"""What methods give and take, as figures."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from bttlab.lab.charts import PALETTE, new_figure, style
from bttlab.lab.memory_figures import COLOURS
from bttlab.methods import Result
from bttlab.methods.record import by_methods, mean

LONGEST = 34  # characters of a name on the axis


def results_figure(results: Sequence[Result], split: str = "dev") -> Figure:
    """Draw memory by category, time and accuracy of some results, a row for each combination of methods.

    Parameters
    ----------
    results : sequence of Result
        Those of the same methods are averaged.
    split : {"dev", "test"}
    """
    groups = by_methods(results)
    figure = new_figure(9.4, 1.6 + 0.34 * len(groups))
    memory, seconds, scores = figure.subplots(1, 3, sharey=True, width_ratios=(5, 2.4, 3))
    style(memory, "Peak memory (measured)", "MB ($10^6$ bytes)", "")
    style(seconds, "Epoch (measured)", "seconds", "")
    style(scores, f"{split} split (measured)", "right (%)", "")
    for row, group in enumerate(groups.values()):
        start = 0.0
        for name in group[0].memory["categories"]:
            size = mean(group, lambda result, name=name: result.memory["categories"][name]["value"]) / 1e6
            label = name.replace("_", " ")
            memory.barh(row, size, left=start, color=COLOURS[label], height=0.6, label=None if row else label)
            start += size
        memory.text(start, row, f" {start:,.1f}", va="center", fontsize=8)
        time = mean(group, lambda result: result.seconds_per_epoch["value"])
        seconds.barh(row, time, color=PALETTE[0], height=0.6)
        seconds.text(time, row, f" {time:,.1f}", va="center", fontsize=8)
        for marker, colour, key in (("o", PALETTE[0], "intent_accuracy"), ("s", PALETTE[1], "slot_f1")):
            values = [100 * result.scores[split][key] for result in group]
            scores.plot(values, np.full(len(values), row), marker, color=colour, markersize=5)
    memory.set_yticks(range(len(groups)), [_shortened(name) for name in groups], fontsize=8)
    memory.set_ylim(len(groups) - 0.4, -0.6)
    memory.margins(x=0.14)
    seconds.margins(x=0.25)
    scores.set_xlim(0, 102)
    scores.plot([], [], "o", color=PALETTE[0], label="intent accuracy")
    scores.plot([], [], "s", color=PALETTE[1], label="slot F1")
    figure.legend(*_legend(memory, scores), loc="outside lower center", ncols=8, fontsize=8, frameon=False)
    return figure


def _legend(*panels) -> tuple[list, list]:
    handles, labels = [], []
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.append(handle)
            labels.append(label)
    return handles, labels


def _shortened(name: str) -> str:
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"
