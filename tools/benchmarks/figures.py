"""The figure of docs/benchmarks.md."""

from functools import partial
from typing import Any

from matplotlib.figure import Figure

from bttlab.lab.charts import PALETTE, new_figure, style


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
    drawing.legend(*drawing.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False)
    return drawing


def _time(row: dict[str, Any], threads: int) -> float | None:
    return row["time"]["median"] if row["threads"] == threads else None


def _count(row: dict[str, Any], column: str, scale: float, threads: int) -> float | None:
    return row[column] / scale if row["threads"] == threads and row[column] is not None else None
