"""The cost of fine-tuning in the lab: the explorer and the figures."""

import numpy as np
import pytest

from bttlab.baseline.gpus import find_gpu, read_gpus
from bttlab.lab import (
    CostExplorer,
    draw_accuracy,
    draw_largest_batches,
    draw_published_load,
    draw_ranking,
    draw_stages,
    draw_throughput,
    draw_utilisation,
)
from bttlab.lab.picture import STALE_CLASS
from bttlab_cost.calibration import read_calibration
from bttlab_cost.estimate import Estimator
from bttlab_cost.models import find_model
from bttlab_cost.xia2024 import throughputs


def test_sliders_ask_the_estimator():
    estimator = Estimator()
    explorer = CostExplorer(estimator, read_gpus(), find_model("mixtral-8x7b,sequence_length=79"))
    explorer.gpu.value, explorer.top_k.value, explorer.tokens.value = "A40-48GB", 8, 20
    config = find_model("mixtral-8x7b,sequence_length=79,top_k=8")
    wanted = estimator.estimate(config, find_gpu("A40"), 20_000_000)
    assert explorer.estimate == wanted
    assert (
        f"<b>{wanted.batch:,}</b>" in explorer.results and "modelled" in explorer.results and "USD" in explorer.results
    )
    explorer.gpu.value = "RTX-A6000"
    assert "no price" in explorer.results and "none of the GPUs" in explorer.message


def test_a_model_that_does_not_fit_is_said_and_leaves_the_figure():
    explorer = CostExplorer(Estimator(), read_gpus(), find_model("llama-2-7b"))
    explorer.gpu.value = "A100-80GB"
    before = explorer.results
    explorer._config = find_model("mixtral-8x7b")
    explorer.gpu.value = "RTX-3090"
    assert (
        "does not fit RTX-3090 at batch 1" in explorer.message and "qlora" not in explorer.message.split("; take ")[1]
    )
    assert explorer.results == before and STALE_CLASS in explorer._results._dom_classes
    explorer.gpu.value = "H100-80GB"
    assert explorer.results != before and STALE_CLASS not in explorer._results._dom_classes


def test_published_marks_and_modelled_lines_of_throughput():
    figure = draw_throughput(read_calibration()).figure
    panels = [axes for axes in figure.axes if axes.lines]
    marks = [line for axes in panels for line in axes.lines if line.get_linestyle() == "None"]
    rates = np.concatenate([line.get_ydata() for line in marks])
    aside = throughputs("throughput_h100.csv")
    assert sorted(rates) == sorted(point.sequences_per_second for point in throughputs() + aside)
    assert "kept aside" in panels[-1].get_title(loc="left")


def test_bars_of_the_published_figures_have_their_heights():
    calibration = read_calibration()
    figure = draw_largest_batches(calibration).figure
    heights = [bar.get_height() for bar in figure.axes[0].patches]
    assert heights[:3] == [6, 8, 27] and heights[6:] == [6, 8, 20]
    figure = draw_published_load().figure
    bars = figure.axes[0].patches
    assert sum(bar.get_height() for bar in bars) == pytest.approx(200)  # per cent, before and after
    figure = draw_stages(calibration).figure
    bars = figure.axes[0].patches
    assert sum(bar.get_height() for bar in bars[:3]) == pytest.approx(1.1 + 1.85 + 0.05)
    figure = draw_utilisation().figure
    values = figure.axes[0].images[0].get_array()
    assert values[0].tolist() == [57.35, 92.18, 32.66, 69.46, 85.10]
    figure = draw_accuracy().figure
    assert max(figure.axes[0].lines[0].get_ydata()) == pytest.approx(85)


def test_the_ranking_has_the_cheapest_on_top():
    estimator, config = Estimator(), find_model("mixtral-8x7b,sequence_length=174")
    figure = draw_ranking([estimator.estimate(config, find_gpu(name), 10**6) for name in estimator.prices]).figure
    costs = [bar.get_width() for bar in figure.axes[1].patches]
    assert costs == sorted(costs, reverse=True) and len(costs) == len(estimator.prices)
