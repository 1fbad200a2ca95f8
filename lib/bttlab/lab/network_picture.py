"""Draw a tensor network: circles are tensors, lines are indices; a line between two circles is summed over."""

from matplotlib.axes import Axes

from bttlab.lab.charts import PALETTE
from bttlab.lab.flow_trace import FlowTrace, TraceStep

_SMALL = 8.5
_KINDS = {"t": "0.3", "i": PALETTE[0], "j": PALETTE[1], "r": PALETTE[2]}  # tokens, output modes, input modes, ranks
_MEANINGS = {"i": "output modes", "j": "input modes", "r": "ranks", "t": "tokens"}
_HOT = "#E69F00"


def draw_network(axes: Axes, trace: FlowTrace, step: TraceStep) -> None:
    """Draw the tensors of a step with their indices; its two operands are marked.

    Parameters
    ----------
    axes : Axes
        Cleared first.
    trace : FlowTrace
    step : TraceStep
        One of the trace's.
    """
    axes.clear()
    axes.set_axis_off()
    for k, (kind, meaning) in enumerate(_MEANINGS.items()):
        axes.text(0.25, -0.85 - 0.25 * k, meaning, color=_KINDS[kind], fontsize=_SMALL)
    places = _places(trace, step)
    names = list(places)
    axes.set(xlim=(0.2, 8.4), ylim=(-1.75, 1.45))
    for number, name in enumerate(names):
        x, y = places[name]
        for other in names[number + 1 :]:
            shared = [index for index in trace.indices_of(name) if index in trace.indices_of(other)]
            _draw_edges(axes, trace, (x, y), places[other], shared)
        others = {index for other in names if other != name for index in trace.indices_of(other)}
        free = [index for index in trace.indices_of(name) if index not in others]
        _draw_legs(axes, trace, (x, y), free)
    for name, (x, y) in places.items():
        hot = name in (step.left, step.right)
        axes.scatter(
            x, y, s=900, color=_HOT if hot else "0.88", edgecolors="0.2", linewidths=1.4 if hot else 0.8, zorder=3
        )
        axes.text(x, y, _typeset(name), ha="center", va="center", fontsize=11, zorder=4)


def _places(trace: FlowTrace, step: TraceStep) -> dict[str, tuple[float, float]]:
    """Return the position of each tensor: cores in a row, a merged one in the middle of its parts, x and dy below."""
    if len(step.present) == 2 and step.present == (step.left, step.right):
        return {step.left: (2.6, 0.0), step.right: (6.0, 0.0)}
    cores = sum(name[0] == "G" for name in trace.indices)
    parts = {f"G{k}": [float(k)] for k in range(1, cores + 1)} | {"x": []}
    for product in trace.forward:
        parts[product.result] = parts[product.left] + parts[product.right]
    places = {}
    for name in step.present:
        centre = sum(parts[name]) / len(parts[name]) if parts[name] else 0.75 * cores + 0.5
        places[name] = (centre * 8 / (cores + 1), -1.05 if "t" in trace.indices[name] else 0.2)
    return places


def _draw_edges(axes: Axes, trace: FlowTrace, start: tuple, end: tuple, shared: list[str]) -> None:
    for k, index in enumerate(shared):
        bend = 0.34 * (k - (len(shared) - 1) / 2)
        axes.annotate(
            "",
            end,
            start,
            arrowprops={
                "arrowstyle": "-",
                "color": _KINDS[index[0]],
                "linewidth": 2,
                "connectionstyle": f"arc3,rad={bend}",
            },
            zorder=1,
        )
        x, y = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2
        dx, dy = end[0] - start[0], end[1] - start[1]
        axes.text(x + bend * dy / 2, y - bend * dx / 2, str(trace.sizes[index]), **_on_line(index))


def _draw_legs(axes: Axes, trace: FlowTrace, place: tuple, free: list[str]) -> None:
    x, y = place
    down = "t" in free and y < 0
    for k, index in enumerate(free):
        shift = 0.42 * (k - (len(free) - 1) / 2)
        end = (x + shift, y + (-0.55 if down else 0.75))
        axes.plot([x, end[0]], [y, end[1]], color=_KINDS[index[0]], linewidth=2, zorder=1)
        axes.text(end[0], end[1] + (-0.14 if down else 0.12), str(trace.sizes[index]), **_on_line(index))


def _on_line(index: str) -> dict:
    return {
        "ha": "center",
        "va": "center",
        "fontsize": _SMALL,
        "color": _KINDS[index[0]],
        "zorder": 2,
        "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.8},
    }


def _typeset(name: str) -> str:
    head = "d" if name[0] == "d" else ""
    letter, number = name[len(head)], name[len(head) + 1 :]
    return f"$\\mathrm{{{head}}}{letter}" + (f"_{{{number}}}$" if number else "$")
