"""Show the values under the mouse, in each panel with the same horizontal axis."""

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bttlab.util.quantities import in_digits

PAPER = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 2}


class Hover:
    """The values of all lines that have a label, at the drawn point nearest to the mouse.

    Lines of the same label share a row, such as the scores of one run. Panels are linked by the label of their
    horizontal axis.
    """

    def __init__(self, figures: Sequence[Figure]):
        self._figures = figures
        self._place: tuple[str, float] | None = None
        self._drawn: list[Artist] = []

    def point(self, axes: Axes | None, x: float | None) -> bool:
        """Choose the place that `show` shows; returns whether it is another than before."""
        before, self._place = self._place, None
        if axes is not None and x is not None:
            known = np.concatenate([np.zeros(0), *(_points(line)[0] for line in _named(axes))])
            known = known[np.isfinite(known)]
            if len(known):
                self._place = axes.get_xlabel(), float(known[np.abs(known - x).argmin()])
        return self._place != before

    def show(self) -> None:
        """Draw the values of the place, instead of those of the place before."""
        for artist in self._drawn:
            if artist.axes is not None:  # else its panel has been cleared
                artist.remove()
        self._drawn = []
        if self._place is None:
            return
        label, x = self._place
        for axes in (axes for figure in self._figures for axes in figure.axes if axes.get_xlabel() == label):
            if rows := _rows(axes, x):
                right = axes.transData.transform((x, 1))[0] > axes.bbox.x0 + axes.bbox.width / 2
                place = {"x": 0.02 if right else 0.98, "ha": "left" if right else "right", "va": "top"}
                place["y"] = _below_legend(axes)
                look = {"transform": axes.transAxes, "bbox": PAPER, "zorder": 9, "fontsize": 8}
                text = axes.text(s="\n".join([f"{label}: {in_digits(x)}", *rows]), **place, **look)
                self._drawn += [axes.axvline(x, color="0.4", linewidth=0.8), text]


def _below_legend(axes: Axes) -> float:
    """Return where values begin: near the top, but not on a legend there."""
    legend = axes.get_legend()
    box = legend.get_window_extent().transformed(axes.transAxes.inverted()) if legend else None
    return min(0.8, box.y0) if box is not None and box.y1 > 0.8 else 0.8


def _named(axes: Axes) -> Iterator[Line2D]:
    return (line for line in axes.lines if not line.get_label().startswith("_"))


def _points(line: Line2D) -> np.ndarray:
    return np.asarray(line.get_xydata(), float).T


def _rows(axes: Axes, x: float) -> list[str]:
    """The values at a place, a row a label; a line that does not reach so far has none."""
    found: dict[str, list[str]] = {}
    for line in _named(axes):
        xs, ys = _points(line)
        known = np.flatnonzero(np.isfinite(xs) & np.isfinite(ys))
        if len(known) and xs[known].min() <= x <= xs[known].max():
            nearest = known[np.abs(xs[known] - x).argmin()]
            band = getattr(line, "band", None)
            bounds = "" if band is None else " ({} to {})".format(*(in_digits(bound[nearest]) for bound in band))
            found.setdefault(line.get_label(), []).append(in_digits(ys[nearest]) + bounds)
    return [f"{label}: {' / '.join(values)}" for label, values in found.items()]
