"""The figures of docs/benchmarks.md, a function a benchmark."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from matplotlib.figure import Figure

from bttlab.lab.charts import PALETTE, new_figure, style
from bttlab.util.quantities import in_digits


def _draw_times(rows: Sequence[dict[str, Any]], series: str, title: str, label: str) -> Figure:
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
    axes.legend(fontsize=8, frameon=False, loc="best")
    return figure


def draw_layer(result: dict[str, Any]) -> Figure:
    """Draw time, memory and operations over the tokens."""
    rows = result["rows"]
    threads = list(dict.fromkeys(row["threads"] for row in rows))
    panels = [(partial(_time, threads=count), f"Time, threads: {count}", "ms") for count in threads]
    panels += [(partial(_count, column="peak", scale=1e3, threads=threads[0]), "Peak memory", "kB")]
    panels += [(partial(_count, column="operations", scale=1e6, threads=threads[0]), "Operations", "MFLOP")]
    drawing = new_figure(11, 0.6 + 4 * -(-len(panels) // 2))
    for axes, (value, title, unit) in zip(drawing.subplots(-(-len(panels) // 2), 2).flat, panels, strict=False):
        style(axes, title, "tokens", f"{unit}, forward and backward")
        for number, name in enumerate(dict.fromkeys(row["contender"] for row in rows)):
            points = [(row["tokens"], value(row)) for row in rows if row["contender"] == name]
            points = [point for point in points if point[1] is not None]
            if points:
                axes.plot(
                    *zip(*points, strict=True),
                    color=PALETTE[number % len(PALETTE)],
                    linestyle="--" if "compiled" in name else "-",
                    linewidth=2.5 if name == "BTT" else 1.2,
                    marker="osv^Dx+<>*"[number % 10],
                    markersize=4,
                    label=name,
                )
        axes.set(xscale="log", yscale="log")
    drawing.legend(*drawing.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return drawing


def _time(row: dict[str, Any], threads: int) -> float | None:
    return row["time"]["median"] if row["threads"] == threads else None


def _count(row: dict[str, Any], column: str, scale: float, threads: int) -> float | None:
    return row[column] / scale if row["threads"] == threads and row[column] is not None else None


def draw_step(result: dict[str, Any]) -> Figure:
    """Draw the times as bars, one for each number of threads."""
    title = f"One training step, {result['settings']['encoders']}-ENC, {result['settings']['data']}"
    return _draw_times(result["rows"], "threads", title, "ms a step (measured)")


def draw_order(result: dict[str, Any]) -> Figure:
    """Draw, over the tokens, arithmetic in parts of the optimum and peak memory, at the model's rank and others."""
    rows = result["rows"]
    drawing = new_figure(11, 4)
    left, right = drawing.subplots(1, 2)
    style(left, "BTT's arithmetic over the optimum's", "tokens", "times the multiply-accumulates, forward")
    for number, rank in enumerate(dict.fromkeys(row["rank"] for row in rows)):
        chosen = [row for row in rows if row["rank"] == rank]
        tokens = [row["tokens"] for row in chosen]
        colour = PALETTE[number % len(PALETTE)]
        over = [row["btt_forward"] / row["optimum_forward"] for row in chosen]
        left.plot(tokens, over, color=colour, marker="osv^Dx"[number % 6], markersize=4, label=f"BTT, rank {rank}")
    worst = [max(r["auto_forward"] / r["optimum_forward"] for r in rows if r["tokens"] == t) for t in tokens]
    left.plot(tokens, worst, "k--", label="auto, the worst of all ranks")
    rank = 12  # of the paper
    chosen = [row for row in rows if row["rank"] == rank] or rows
    style(right, f"Peak memory, rank {chosen[0]['rank']}", "tokens", "thousand elements")
    for number, (name, label) in enumerate((("btt_peak", "BTT"), ("auto_peak", "auto"))):
        for part, line in enumerate(("-", "--")):
            values = [row[name][part] / 1e3 for row in chosen]
            label_of = f"{label}, {('forward', 'backward')[part]}"
            right.plot(
                [r["tokens"] for r in chosen],
                values,
                line,
                color=PALETTE[number],
                marker="o",
                markersize=3,
                label=label_of,
            )
    values = [row["optimum_peak_forward"] / 1e3 for row in chosen]
    right.plot([row["tokens"] for row in chosen], values, "k:", label="optimum of arithmetic, forward")
    left.set(xscale="log", yscale="log")
    right.set(xscale="log", yscale="log")
    for axes in (left, right):
        axes.legend(fontsize=8, frameon=False, loc="best")
    return drawing


def draw_memory(result: dict[str, Any]) -> Figure:
    """Draw the peaks as bars."""
    rows = result["rows"]
    names = list(dict.fromkeys(row["contender"] for row in rows))
    encoders = list(dict.fromkeys(row["encoders"] for row in rows))
    drawing = new_figure(8.5, 4.6)
    axes = drawing.subplots()
    style(axes, "Peak memory of a training step, batch 1, SGD", "", "MB (10^6 bytes)")
    width = 0.8 / len(names)
    for number, name in enumerate(names):
        chosen = [row for row in rows if row["contender"] == name]
        places = [encoders.index(row["encoders"]) + (number - (len(names) - 1) / 2) * width for row in chosen]
        provenance = "modelled" if name.startswith("on chip") else "measured"
        bars = axes.bar(
            places, [row["peak"] / 1e6 for row in chosen], width, color=PALETTE[number], label=f"{name} ({provenance})"
        )
        axes.bar_label(bars, fmt="%.3g", fontsize=8)
    axes.set_xticks(range(len(encoders)), [f"{count}-ENC" for count in encoders])
    axes.set_yscale("log")
    axes.margins(y=0.1)
    drawing.legend(fontsize=8, frameon=False, loc="outside lower center", ncols=2)
    return drawing


DRAWINGS: dict[str, Callable[[dict[str, Any]], Figure]] = {
    "layer": draw_layer,
    "memory": draw_memory,
    "order": draw_order,
    "step": draw_step,
}
