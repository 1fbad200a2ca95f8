"""The dashboard's figure in a browser that is too slow for it: in the end it shows the data, and nothing else."""

import nbformat
import pytest

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


@pytest.fixture
def dashboard(lab_folder, open_notebook):
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)], metadata=metadata)
    nbformat.write(notebook, lab_folder / "notebooks" / "dashboard.ipynb")
    lab = open_notebook("dashboard")
    lab.run_all()
    lab.page.wait_for_selector(CANVAS)
    return lab


@pytest.mark.parametrize("times", [1, 12])
def test_a_slow_browser_shows_what_a_fresh_drawing_shows(dashboard, times):
    lab = dashboard
    lab.page.context.new_cdp_session(lab.page).send("Emulation.setCPUThrottlingRate", {"rate": times})
    for name in ("first", "second"):
        lab.select("train on", name)
        lab.button("Start").click()
        lab.wait_for_text(f"{name}: finished")
    fresh = int(lab.python("fresh(board)"))
    lab.page.wait_for_function(f"selector => ({DIGEST})(selector) === {fresh}", arg=CANVAS, timeout=2000)
    lab.picture(f"slow_browser_{times}")
