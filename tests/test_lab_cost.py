"""The cost of fine-tuning in the lab: the explorer and the figures."""

import matplotlib
import numpy as np
import pytest

from bttlab.cost.estimate import Estimator
from bttlab.cost.models import find_model
from bttlab.cost.prices import read_prices
from bttlab.lab import CostExplorer, draw_breakdown, draw_held_out, draw_load
from cost_profiles import made_up


@pytest.fixture(autouse=True)
def without_windows():
    matplotlib.use("agg")
    yield
    matplotlib.pyplot.close("all")


def test_sliders_ask_the_estimator():
    estimator, gpus = Estimator(made_up()), read_prices()
    explorer = CostExplorer(estimator, gpus, find_model("tiny"))
    explorer.gpu.value, explorer.top_k.value, explorer.tokens.value = "RTX-4090", 8, 20
    wanted = estimator.estimate(find_model("tiny,top_k=8"), gpus["RTX-4090"], 20_000_000)
    assert explorer.estimate == wanted
    assert f"{wanted.largest_batch:,}" in explorer.results and "modelled" in explorer.results
    assert "tokens a step" in explorer.message  # beyond what was measured


def test_a_model_that_does_not_fit_is_said_and_leaves_the_figure():
    explorer = CostExplorer(Estimator(made_up()), read_prices(), find_model("base,experts=64"))
    before = explorer.results
    explorer.gpu.value = "RTX-3090"
    assert "does not fit RTX-3090 at batch 1" in explorer.message and explorer.results == before


def test_breakdown_adds_up():
    stage = {"attention": 0.001, "router": 0.002, "experts": 0.003, "norm": 0.004, "other": 0.005}
    draw_breakdown({"a model": {"forward": stage, "backward": stage, "optimizer": {"all": 0.01}}})
    bars = matplotlib.pyplot.gcf().axes[0].patches
    assert len(bars) == 11 and max(bar.get_x() + bar.get_width() for bar in bars) == pytest.approx(40)


def test_load_is_drawn_in_percent_by_layer():
    load = np.random.default_rng(0).dirichlet(np.ones(4), size=(5, 2))
    draw_load(load, 100)
    images = [axes.images[0] for axes in matplotlib.pyplot.gcf().axes[:2]]
    np.testing.assert_allclose(images[1].get_array(), 100 * load[:, 1].T)


def test_held_out_predictions_of_exact_profiles_lie_on_the_line():
    model = Estimator(made_up()).model
    draw_held_out(model)
    throughput = matplotlib.pyplot.gcf().axes[0].collections[-1].get_offsets()
    assert len(throughput) == sum(len(profile.batches) for profile in model.profiles)
    np.testing.assert_allclose(throughput[:, 0], throughput[:, 1], rtol=1e-3)
