"""Figures of memory, time, energy and scores by method."""

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes

from bttlab.lab.charts import PALETTE, as_label, draw_parts, legend_below, new_axes, new_figure, pareto_front, style
from bttlab.lab.memory_figures import COLOURS
from bttlab.lab.picture import Picture
from bttlab_methods import Method, MethodError, Result, methods
from bttlab_methods.library.tensor import TensorCompression
from bttlab_methods.record import by_methods, deviation, mean, peak, seconds_per_epoch, slot_f1

LONGEST = 34  # characters of a name on the axis
MARKS = ("o", PALETTE[0], "intent_accuracy", "intent accuracy"), ("s", PALETTE[1], "slot_f1", "slot F1")


def draw_results(results: Sequence[Result], split: str = "dev") -> Picture:
    """Draw memory by category, time, energy where it was metered, and accuracy: a row for each combination of methods.

    Results of the same methods and setting are averaged; a line at a bar's end is their sample standard deviation. If
    the settings differ, such as the budget or the learning rate, each has a row of its own.
    """
    groups = by_methods(results)
    metered = any(result.joules_per_epoch["value"] is not None for result in results)
    figure = new_figure(9.4, 1.6 + 0.34 * len(groups))
    ratios = (4.4, 1.9, 1.9, 2.6) if metered else (5, 2.4, 3)
    memory, seconds, *energy, scores = figure.subplots(1, len(ratios), sharey=True, width_ratios=ratios)
    style(memory, "Peak memory (measured)", "MB ($10^6$ bytes)", "")
    style(seconds, "Epoch (measured)", "seconds", "")
    for axes in energy:
        style(axes, "Epoch (measured)", "joules", "")
    style(scores, f"{split.capitalize()} split (measured)", "right (%)", "")
    for row, group in enumerate(groups.values()):
        sizes = {
            name.replace("_", " "): mean(group, lambda result, name=name: result.memory["categories"][name]["value"])
            for name in group[0].memory["categories"]
        }
        end = draw_parts(memory, row, [(name, size / 1e6, COLOURS[name]) for name, size in sizes.items()])
        memory.text(end, row, f" {end:,.1f}", va="center", fontsize=8)
        _bar(seconds, row, group, seconds_per_epoch)
        for axes in energy:
            _bar(axes, row, group, lambda result: result.joules_per_epoch["value"])
        for marker, colour, key, label in MARKS:
            values = [100 * result.scores[split][key] for result in group]
            places = np.full(len(values), row)
            scores.plot(values, places, marker, color=colour, markersize=5, label=None if row else label)
    memory.set_yticks(range(len(groups)), [_row_name(*each) for each in groups.items()], fontsize=8)
    memory.set_ylim(len(groups) - 0.4, -0.6)
    memory.margins(x=0.14)
    for axes in (seconds, *energy):
        axes.margins(x=0.25)
    scores.set_xlim(-2, 102)
    legend_below(figure, 8)
    return Picture(figure, f"What training takes and reaches, by methods: {', '.join(groups)}.")


def _bar(axes: Axes, row: int, group: Sequence[Result], value: Callable[[Result], float | None]) -> None:
    if None not in map(value, group):
        length, spread = mean(group, value), deviation(group, value)
        axes.barh(row, length, color=PALETTE[0], height=0.6, xerr=spread or None, error_kw={"lw": 1})
        axes.text(length + spread, row, f" {length:,.1f}", va="center", fontsize=8)


def _row_name(name: str, group: Sequence[Result]) -> str:
    """Return the name of a group of `by_methods`: its methods, shortened, and below them what differs."""
    methods = group[0].methods
    return _shortened(methods) + as_label(name.removeprefix(methods).replace(", ", "\n", 1))


def _shortened(name: str) -> str:
    return as_label(name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…")


def _trains_cores(combination: str) -> bool:
    names = (part.partition(":")[0] for part in combination.split("+"))
    return any(issubclass(methods().get(name, Method), TensorCompression) for name in names)


def draw_scatter(results: Sequence[Result]) -> Picture:
    """Draw slot F1 against peak memory, a point for each combination, named if none beats it in both.

    A point is the mean over the seeds, its line the sample standard deviation. Where names would cover each other, the
    first stands alone; dense and tensor are named whatever beats them.
    """
    groups = by_methods(results)
    points = {name: (mean(group, peak) / 1e6, 100 * mean(group, slot_f1)) for name, group in groups.items()}
    title = "Slot F1 on test against peak memory (measured)"
    axes = new_axes(7.5, 4.2, title, "MB ($10^6$ bytes, logarithmic)", "slot F1 (%)")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("{x:g}")
    axes.tick_params(axis="x", which="both", labelsize=8)
    tensor = {name for name, group in groups.items() if _trains_cores(group[0].methods)}
    for kind, names, colour, marker in (
        ("dense", points.keys() - tensor, PALETTE[1], "s"),
        ("tensor", tensor, PALETTE[0], "o"),
    ):
        if names:
            sizes, scores = zip(*(points[name] for name in names), strict=True)
            spreads = [100 * deviation(groups[name], slot_f1) for name in names]
            axes.errorbar(sizes, scores, spreads, fmt=marker, elinewidth=0.8, color=colour, label=f"{kind} model")
    front = pareto_front(list(points.values()), maximize=True)
    named: list[tuple[float, float]] = []
    for name in dict.fromkeys(["dense", "tensor", *(name for name in points if points[name] in front)]):
        size, score = points.get(name, (0, 0))
        if size and not any(abs(size / x - 1) < 0.3 and abs(score - y) < 3 for x, y in named):
            axes.annotate(_row_name(name, groups[name]), points[name], (4, 4), textcoords="offset points", fontsize=8)
            named.append(points[name])
    axes.margins(0.15)
    axes.legend(loc="lower right", frameon=False)
    return Picture(axes.figure, "Methods of training by peak memory and slot F1.")


def draw_expert_loads(result: Result) -> Picture:
    """Draw each expert's part of the tokens over a run of `mixture-of-experts`, a panel for each encoder.

    A run that was stopped ends where it was.

    Raises MethodError if the run had no experts.
    """
    loads = np.array(result.facts.get("expert_loads", ()))
    if not loads.size:
        raise MethodError(f"{result.methods} has no experts: train with mixture-of-experts")
    parts, encoders, experts = loads.shape
    figure = new_figure(1.5 + 3.4 * encoders, 2.8)
    panels = np.atleast_1d(figure.subplots(1, encoders, sharey=True))
    evenly = np.arange(1, parts + 1) / parts * 100  # of older records, whose runs went to their end
    ends = np.array([0.0, *result.facts.get("expert_loads_until", evenly)])
    for number, axes in enumerate(panels):
        style(axes, f"Encoder {number} (measured)", "part of the budget (%)", "" if number else "tokens (%)")
        shares = 100 * np.concatenate([loads[:, number], loads[-1:, number]]).T
        names = [f"expert {expert}" for expert in range(experts)]
        axes.stackplot(ends, shares, step="post", colors=PALETTE, labels=() if number else names)
        if ends[-1] < 100:  # a run that was stopped
            axes.set_xlim(0, 100)
    legend_below(figure, experts)
    return Picture(figure, f"Load of each of {experts} experts in {encoders} encoders over training, {result.methods}.")
