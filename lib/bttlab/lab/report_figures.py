"""Draw scores by slot type, and which intents are taken for which."""

import numpy as np

from bttlab.data.report import Report
from bttlab.lab.charts import PALETTE, as_label, new_figure, style
from bttlab.lab.picture import Picture

SHOWN = 12  # labels of each kind, the most frequent ones


def draw_report(report: Report) -> Picture:
    """Draw the F1 of the most frequent slot types, and the confusion matrix of the most frequent intents.

    Parameters
    ----------
    report : Report
        Of an evaluation.

    Returns
    -------
    Picture
        Two panels.
    """
    slots, labels = report.slots[:SHOWN], report.labels[:SHOWN]
    figure = new_figure(9.0, 1.4 + 0.28 * max(len(slots), len(labels)))
    left, right = figure.subplots(1, 2)
    style(left, "F1 by slot type (measured)", "F1 (%)", "")
    left.barh(range(len(slots)), [100 * row.f1 for row in slots], color=PALETTE[0])
    left.set_yticks(range(len(slots)), [f"{as_label(row.label)} ({row.support})" for row in slots], fontsize=8)
    left.set_xlim(0, 100)
    left.invert_yaxis()
    style(right, "Intents (measured)", "predicted", "in the corpus")
    counts = np.array(report.confusion, int).reshape(len(report.labels), len(report.labels))
    counts = counts[: len(labels), : len(labels)]
    right.grid(False)
    if labels:  # none of a model or corpus without intents
        right.imshow(counts / np.maximum(counts.sum(1, keepdims=True), 1), cmap="Blues", vmin=0, vmax=1)
    for row, column in np.argwhere(counts).tolist():
        colour = "white" if counts[row, column] > counts[row].sum() / 2 else "black"
        right.text(column, row, counts[row, column], ha="center", va="center", fontsize=7, color=colour)
    names = [as_label(label) for label in labels]
    right.set_xticks(range(len(labels)), names, rotation=60, ha="right", fontsize=7)
    right.set_yticks(range(len(labels)), names, fontsize=7)
    return Picture(figure, "Bars of F1 by slot type, and a matrix of intents in the corpus against predicted ones.")
