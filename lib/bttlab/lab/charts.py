"""Draw figures: colours, smoothing, axes, PNG.

Figures are made without pyplot, because another thread may draw them.
"""

import io
from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind readers can tell apart; yellow is left out, white paper swallows it.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
SMOOTHING = 100  # samples in the moving mean of a loss curve
POINTS = 1500  # drawn of a curve at most: more than a figure has pixels
DOTS_PER_INCH = 100
PANEL = (3.0, 2.5)  # inches: three fit side by side in a window of 1400 pixels, one in a narrow one
NUMBERS = "{x:,.10g}"  # a tick: 12,500 and 0.25


def smooth(values: np.ndarray, window: int = SMOOTHING) -> np.ndarray:
    """Return the mean of each value and the up to `window` - 1 before it, float64 of the same shape."""
    sums = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
    ends = np.arange(1, len(sums))
    starts = np.maximum(ends - window, 0)
    return (sums[ends] - sums[starts]) / (ends - starts)


def thinned(values: np.ndarray, points: int = POINTS) -> np.ndarray:
    """Return the indices of at most about `points` evenly spaced values, the last one among them."""
    step = max(1, -(-len(values) // points))
    return np.arange(len(values) - 1, -1, -step)[::-1]


def round_up(value: float) -> float:
    """Return the next larger of 1, 1.5, 2, 3, 4, 5, 6, 8, 10 times a power of ten: limits that seldom change."""
    power = 10.0 ** np.floor(np.log10(value))
    return next(float(step * power) for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * power >= value)


def pareto_front(points: Sequence[tuple[float, float]], maximize: bool) -> list[tuple[float, float]]:
    """Return the points (cost, objective) that no other beats in both, by rising cost; less cost is better."""
    sign = -1 if maximize else 1
    front, least = [], float("inf")
    for cost, objective in sorted(points, key=lambda point: (point[0], sign * point[1])):
        if sign * objective < least:
            front.append((cost, objective))
            least = sign * objective
    return front


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure on white paper, `width` x `height` inches; legible in a dark theme, too."""
    figure = Figure(figsize=(width, height), dpi=DOTS_PER_INCH, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def new_axes(width: float, height: float, title: str, x_label: str, y_label: str) -> Axes:
    axes = new_figure(width, height).subplots()
    style(axes, title, x_label, y_label)
    return axes


def as_label(name: str) -> str:
    """Return a user's name as a matplotlib label: no formula, not hidden from legends."""
    shown = name.replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


def style(axes: Axes, title: str, x_label: str, y_label: str) -> None:
    """Give axes their title, labels (with units) and the lab's looks."""
    axes.set(xlabel=x_label, ylabel=y_label)
    axes.set_title(title, loc="left", fontweight="bold", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.set_axisbelow(True)


def panel() -> Figure:
    figure = Figure(figsize=PANEL, dpi=DOTS_PER_INCH, facecolor="white")
    figure.subplots_adjust(left=0.18, right=0.89, bottom=0.2, top=0.88)
    return figure


def small_style(axes: Axes, title: str, x_label: str) -> None:
    """Style the axes of a panel: a small title, few ticks."""
    style(axes, title, x_label, "")
    axes.set_title(title, loc="left", fontweight="bold", fontsize=9.5)
    axes.locator_params(nbins=4)
    axes.xaxis.set_major_formatter(NUMBERS)


def samples_end(count: int) -> float:
    """Return the end of an axis of samples: where the data end."""
    return max(count, 500)


def legend_below(figure: Figure, ncols: int = 4, marks: Iterable[Artist] = ()) -> None:
    """Name each kind of mark in the figure's panels once, below them; of these marks, if the panels have no labels."""
    kinds = {mark.get_label(): mark for mark in marks}
    for axes in figure.axes:
        kinds |= dict(zip(*axes.get_legend_handles_labels()[::-1], strict=True))
    figure.legend(kinds.values(), kinds, fontsize=8, ncols=ncols, loc="outside lower center", frameon=False)


def draw_parts(axes: Axes, row: int, parts: Iterable[tuple[str, float, str]], height: float = 0.6) -> float:
    """Draw a bar of parts, name, size and colour each; return where it ends."""
    start = 0.0
    for name, size, colour in parts:
        axes.barh(row, size, left=start, color=colour, height=height, label=name)
        start += size
    return start


def draw_band(axes: Axes, x: np.ndarray, band: np.ndarray, colour: str, label: str = "", **look) -> None:
    """Draw a line over `x`, shape (n,), in the pale area of its band, shape (3, n): low, middle and high."""
    low, middle, high = band
    axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    (line,) = axes.plot(x, middle, color=colour, label=label, **{"linewidth": 2, **look})
    if np.any(high > low):
        line.band = low, high  # for `hover`


def draw_megabytes(axes: Axes, rows: Sequence[tuple[str, str, tuple[float, float, float] | None]]) -> None:
    """Draw numbers of bytes as dots with their bands, a row each, with a label above.

    A row has a label, a colour, and bytes (low, middle, high).
    """
    text, dot, above = (8, 7, 7) if len(rows) <= 4 else (7, 4, 3)  # points: what has room between two rows
    for row, (label, colour, band) in enumerate(rows):
        if band is not None:
            low, middle, high = (value / 1e6 for value in band)
            bounds = [[middle - low], [high - middle]] if high > low else None
            axes.errorbar(middle, row, xerr=bounds, fmt="o", color=colour, capsize=dot / 2, markersize=dot)
        axes.annotate(label, (0, row), (4, above), textcoords="offset points", fontsize=text, color=colour)
    most = max((band[2] for _, _, band in rows if band is not None), default=1e8)
    axes.set(yticks=[], ylim=(max(1, len(rows)) - 0.6, -0.9), xlim=(0, 1.05 * most / 1e6))


def to_png(figure: Figure, scale: float = 1.0, compress_level: int = 6, description: str = "") -> bytes:
    """Draw a figure as PNG; `scale` 2 gives twice the pixels, for screens that have them.

    `description`: a text that the file keeps, such as what the figure is drawn from.
    """
    buffer = io.BytesIO()
    figure.savefig(
        buffer,
        format="png",
        dpi=scale * DOTS_PER_INCH,
        metadata={"Description": description} if description else None,
        pil_kwargs={"compress_level": compress_level},
    )
    return buffer.getvalue()
