"""The dashboard's figure in a browser that is too slow for it: in the end it shows the data, and nothing else."""

import pytest

pytestmark = pytest.mark.long

# A dashboard on a trainer that pretends: what the browser shows of it is tested, not what it trains.
CELL = """%matplotlib widget
import numpy as np
from bttlab.data import load_corpus
from bttlab.lab import Dashboard, Workload
from bttlab.lab.meters import PowerMeter
from bttlab.model import ModelConfig
from lab_trainers import PretendTrainer, pretend_target
from live_figure import fresh

workload = Workload.of(load_corpus("airline"), ModelConfig())
meter = lambda: PowerMeter(lambda: 24.0, "no real watts")
targets = [pretend_target(workload, PretendTrainer(1e-3), name, meter()) for name in ("first", "second")]
board = Dashboard(targets, samples=4000)
board"""
CANVAS = ".jupyter-matplotlib-canvas-container canvas"
# FNV-1a over the pixels, as `live_figure.digest` has it.
DIGEST = """selector => {
    const canvas = document.querySelector(selector);
    const pixels = new Uint32Array(
        canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.buffer);
    let sum = 2166136261;
    for (const pixel of pixels) sum = Math.imul(sum ^ pixel, 16777619) >>> 0;
    return sum;
}"""


@pytest.fixture(scope="module")
def notebook(open_cells):
    return open_cells("dashboard", CELL)


@pytest.mark.parametrize("times", [12])
def test_a_slow_browser_shows_what_a_fresh_drawing_shows(notebook, times):
    lab = notebook
    lab.run_cell_with("board = Dashboard")
    lab.page.wait_for_selector(CANVAS)
    lab.page.context.new_cdp_session(lab.page).send("Emulation.setCPUThrottlingRate", {"rate": times})
    for name in ("first", "second"):
        lab.select("train on", name)
        lab.button("Start").click()
        lab.wait_for_text(f"{name}: finished")
    fresh = int(lab.python("fresh(board)"))
    lab.page.wait_for_function(f"selector => ({DIGEST})(selector) === {fresh}", arg=CANVAS)
    lab.picture(f"slow_browser_{times}")
