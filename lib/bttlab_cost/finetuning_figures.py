"""Figures of the fine-tuning runs that Xia et al. published (arXiv 2408.04693), with what the model of a GPU step says.

In all of them open or filled marks and plain bars are published, lines and hatched bars are modelled.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from bttlab.baseline.gpus import find_gpu
from bttlab.lab.charts import PALETTE, legend_below, new_axes, new_figure, style
from bttlab.lab.picture import Picture
from bttlab_cost import xia2024
from bttlab_cost.calibration import Calibration, modelled_largest_batches, stage_seconds
from bttlab_cost.estimate import Estimate
from bttlab_cost.gpu_step import step_seconds
from bttlab_cost.xia2024 import Throughput

SPARSE, DENSE = PALETTE[0], PALETTE[1]
STAGE_COLOURS = {"forward": PALETTE[0], "backward": PALETTE[1], "optimizer": PALETTE[2]}
KERNELS = {"w2_dequant": "dequantisation", "topk": "top k", "time_weighted": "all, by time"}
SETTINGS = {
    "dense_batch_1": "dense 1",
    "dense_batch_10": "dense 10",
    "sparse_batch_1": "sparse 1",
    "sparse_batch_10": "sparse 10",
    "sparse_batch_32": "sparse 32",
}


def draw_largest_batches(calibration: Calibration) -> Picture:
    """Draw the largest batches of 512 tokens: published, by our model, and by equation 1."""
    axes = new_axes(7, 3.2, "Largest batch, Mixtral-8x7B, QLoRA, top 2 of 8, 512 tokens", "", "sequences")
    pairs = modelled_largest_batches(calibration.memory)
    equation = [xia2024.equation_1(point) for point, _ in pairs]
    groups = (
        ("published", [point.largest_batch for point, _ in pairs], PALETTE[6], None),
        ("modelled", [modelled for _, modelled in pairs], PALETTE[0], "//"),
        ("published equation 1 (C0 = 62, C1 = 0.89)", equation, PALETTE[4], ".."),
    )
    for place, (label, values, colour, hatch) in enumerate(groups):
        at = np.arange(len(pairs)) + 0.27 * (place - 1)
        bars = axes.bar(at, values, 0.25, color=colour, hatch=hatch, edgecolor="white", label=label)
        axes.bar_label(bars, fontsize=8)
    axes.set_xticks(range(len(pairs)), [point.gpu for point, _ in pairs])
    axes.legend(fontsize=8, frameon=False, loc="upper left")
    return Picture(axes.figure, "The largest batches of 512 tokens.")


def draw_throughput(calibration: Calibration) -> Picture:
    """Draw throughput over batch size by model, data set and GPU; nothing was fitted to the H100's points."""
    points = xia2024.throughputs() + xia2024.throughputs("throughput_h100.csv")
    series = xia2024.series(points)
    rows = -(-len(series) // 3)
    figure = new_figure(9.2, 2.5 * rows + 0.5)
    panels = figure.subplots(rows, 3, squeeze=False)
    for axes in panels.flat[len(series) :]:
        axes.set_axis_off()
    for axes, ((model, data_set, gpu), members) in zip(panels.flat, series.items(), strict=False):
        _throughput_panel(axes, members, calibration)
        kept = ", kept aside" if gpu.startswith("H100") else ""
        axes.set_title(f"{model}, {data_set}\n{gpu}{kept}", loc="left", fontsize=9, fontweight="bold")
    legend_below(figure, 3)
    return Picture(figure, "Throughput over batch size by model, data set and GPU.")


def _throughput_panel(axes: Axes, members: Sequence[Throughput], calibration: Calibration) -> None:
    style(axes, "", "sequences per step", "sequences/s")
    equation = xia2024.equation_2(members)
    for name, colour, marker, dense in (("sparse", SPARSE, "o", False), ("dense", DENSE, "s", True)):
        chosen = [point for point in members if (point.config.sparsity == 1) == dense]
        batches = np.arange(1, max(point.batch for point in chosen) + 1)
        config, gpu = chosen[0].config, find_gpu(chosen[0].gpu)
        rates = [batch / step_seconds(config, gpu, int(batch), calibration.time) for batch in batches]
        axes.plot(
            [point.batch for point in chosen],
            [point.sequences_per_second for point in chosen],
            marker, color=colour, markersize=4, label=f"{name}, published",
        )  # fmt: skip
        axes.plot(batches, rates, color=colour, linewidth=1.6, label=f"{name}, modelled")
        axes.plot(
            batches, equation(batches, config.sparsity), ":", color=colour, linewidth=1.4,
            label=f"{name}, published equation 2",
        )  # fmt: skip
    axes.set(xlim=(0, None), ylim=(0, None))


def draw_stages(calibration: Calibration) -> Picture:
    """Draw the stages of a step on the A40, sequences of 128 tokens: published and modelled."""
    models = list(dict.fromkeys(point.model for point in xia2024.stages()))
    figure = new_figure(9.2, 3.6)
    panels = figure.subplots(1, len(models))
    for axes, model in zip(panels, models, strict=True):
        style(axes, f"{model}, A40", "batch size", "seconds per step")
        chosen = [point for point in xia2024.stages() if point.model == model]
        for place, point in enumerate(chosen):
            for shift, seconds, hatch in (
                (-0.2, point.seconds, None),
                (0.2, stage_seconds(point, calibration.time), "//"),
            ):
                bottom = 0.0
                for stage, value in seconds.items():
                    look = {"color": STAGE_COLOURS[stage], "hatch": hatch, "edgecolor": "white", "linewidth": 0.5}
                    axes.bar(place + shift, value, 0.36, bottom=bottom, **look)
                    bottom += value
        labels = [f"{'dense' if point.config.sparsity == 1 else 'sparse'}\n{point.batch}" for point in chosen]
        axes.set_xticks(range(len(chosen)), labels)
    marks = [Patch(color=colour, label=stage) for stage, colour in STAGE_COLOURS.items()]
    for hatch, label in (("", "plain: published"), ("///", "hatched: modelled")):
        marks.append(Patch(facecolor="0.8", hatch=hatch, edgecolor="0.4", linewidth=0, label=label))
    legend_below(figure, 5, marks)
    return Picture(figure, "The stages of a step on the A40, sequences of 128 tokens.")


def draw_utilisation() -> Picture:
    """Draw how busy the A40's processors and memory are in each kernel of Mixtral's experts; published."""
    figure = new_figure(9.2, 3.4)
    panels = figure.subplots(1, 2)
    titles = {"sm_utilisation_percent": "Processors (SM)", "dram_utilisation_percent": "Memory (DRAM)"}
    for axes, (what, title) in zip(panels, titles.items(), strict=True):
        chosen = [row for row in xia2024.rows("breakdown.csv") if row["what"] == what]
        values = np.array([[float(row[name]) for name in SETTINGS] for row in chosen])
        image = axes.imshow(values, vmin=0, vmax=100, cmap="cividis", aspect="auto")
        for (row, column), value in np.ndenumerate(values):
            axes.text(
                column, row, f"{value:.0f}", ha="center", va="center", fontsize=8, color="k" if value > 55 else "w"
            )
        kernels = [KERNELS.get(row["part"], row["part"]) for row in chosen]
        axes.set_yticks(range(len(kernels)), kernels, fontsize=8)
        axes.set_xticks(range(len(SETTINGS)), SETTINGS.values(), fontsize=8, rotation=20)
        axes.set_title(f"{title} (published)", loc="left", fontsize=10, fontweight="bold")
    figure.colorbar(image, ax=panels.tolist(), label="busy (%)")
    return Picture(figure, "How busy the A40's processors and memory are in each kernel of Mixtral's experts.")


def draw_published_load() -> Picture:
    """Draw how many tokens each of Mixtral's experts gets, before and after fine-tuning; published."""
    rows = {row["data_set_and_state"]: row for row in xia2024.rows("expert_load_mixtral.csv")}
    figure = new_figure(9.2, 2.9)
    panels = figure.subplots(1, 2)
    for axes, (key, name) in zip(panels, (("HE", "HellaSwag"), ("GS", "GSM8K")), strict=True):
        style(axes, f"{name} (published)", "expert", "share of the tokens (%)")
        for shift, state, label, colour in (
            (-0.2, key, "before", PALETTE[5]),
            (0.2, f"{key}_tuned", "fine-tuned", PALETTE[0]),
        ):
            load = np.array([float(rows[state][f"expert_{number}"]) for number in range(8)])
            axes.bar(np.arange(8) + shift, 100 * load / load.sum(), 0.38, color=colour, label=label)
        axes.axhline(100 / 8, color="0.2", linewidth=1, linestyle="--", label="fair")
        axes.set_ylim(0, 20)
        axes.legend(fontsize=8, frameon=False, ncols=3, loc="upper center")
    return Picture(figure, "How many tokens each of Mixtral's experts gets, before and after fine-tuning.")


def draw_accuracy() -> Picture:
    """Draw accuracy over epochs of fine-tuning, sparse against dense; published."""
    rows = xia2024.rows("accuracy_by_epoch.csv")
    epochs = [int(row["Accuracy"]) for row in rows]
    figure = new_figure(9.2, 2.7)
    panels = figure.subplots(1, 4)
    names = {"MIX": "Mixtral", "BLK": "BlackMamba"}
    tests = {"HE": "HellaSwag", "GS": "GSM8K"}
    for axes, (model, test) in zip(panels, ((m, t) for m in names for t in tests), strict=True):
        style(axes, "", "epoch", "accuracy (%)" if axes is panels[0] else "")
        axes.set_title(f"{names[model]}, {tests[test]}", loc="left", fontsize=9, fontweight="bold")
        for kind, colour, line in (("DENSE", DENSE, "-"), ("SPARSE", SPARSE, "--")):
            values = [100 * float(row[f"{model}{kind}-{test}"]) for row in rows]
            axes.plot(epochs, values, line, color=colour, marker=".", label=kind.lower())
        axes.set_ylim(0, None)
    legend_below(figure, 2)
    return Picture(figure, "Accuracy over epochs of fine-tuning, sparse against dense.")


def draw_ranking(estimates: Sequence[Estimate]) -> Picture:
    """Draw throughput and cost of one run on several GPUs, modelled, with their bands; all need a price."""
    ranking = sorted(estimates, key=lambda one: one.cost[1], reverse=True)
    figure = new_figure(9.2, 0.9 + 0.42 * len(ranking))
    panels = figure.subplots(1, 2, sharey=True)
    price = f"USD; prices of {ranking[0].price.provider}, {ranking[0].price.date}"
    shown = (
        ("Throughput (modelled)", "sequences/s", [one.sequences_per_second for one in ranking]),
        ("Cost (modelled)", price, [one.cost for one in ranking]),
    )
    for axes, (title, unit, bands) in zip(panels, shown, strict=True):
        style(axes, title, unit, "")
        low, middle, high = np.array(bands).T
        axes.barh(range(len(ranking)), middle, color=PALETTE[0], hatch="//", edgecolor="white", height=0.6)
        axes.errorbar(
            middle, range(len(ranking)), xerr=[middle - low, high - middle], fmt="none", ecolor="0.2", capsize=3
        )
    panels[0].set_yticks(range(len(ranking)), [f"{one.gpu.gpu}, batch {one.batch}" for one in ranking])
    return Picture(figure, "Throughput and cost of one run on several GPUs, modelled, with their bands.")
