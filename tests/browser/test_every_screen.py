"""Every widget of the notebooks: the keyboard reaches its controls, and a narrow window hides and stacks nothing.

Of the dashboard's figure: in a browser that is too slow for it, it shows the data in the end, and nothing else.
Of each notebook: while its first cell imports, the page says how long that takes.
"""

import pytest
from lab_page import ROOT, SIZE

pytestmark = pytest.mark.long

SETUP = """%matplotlib widget
%env BTTLAB_QUICK=1
from collections import Counter
import numpy as np, torch
from bttlab import lab
from bttlab.baseline.gpus import read_gpus
from bttlab_cost.estimate import Estimator
from bttlab_cost.models import find_model
from bttlab.data import load_corpus
from bttlab.lab import design_explorer
from bttlab.lab.energy_meters import power_meter
from bttlab.model import ModelConfig
from fake_trainer import PretendTrainer, pretend_target
from live_figure import fresh

workload = lab.Workload.of(load_corpus("airline"), ModelConfig(format="dense"))
matrix = torch.from_numpy(np.random.default_rng(0).standard_normal((768, 768)).astype(np.float32))
PretendTrainer.config = workload.config
meter = power_meter(lambda: 24.0, "no real watts")
targets = [pretend_target(workload, PretendTrainer(1e-3), "pretend", meter)]
# Two programs beside the chosen design: "auto" compiles six for each rank.
flows = "bidirectional", "right_to_left"
design_explorer.grid = lambda encoders: [lab.Design(encoders, 8, flow) for flow in flows]"""
WIDGETS = {
    "compression": "lab.CompressionExplorer(matrix)",
    "flow": "lab.FlowExplorer((12, 8, 8), (8, 8, 12), tokens=32, rank=12)",
    "dashboard": "board = lab.Dashboard(targets, samples=2000)\nboard.start()\nboard.wait()\nboard",
    "runs": "lab.RunBrowser()",
    "design": "lab.DesignExplorer(Counter(workload.train.lengths.tolist()), lab.Design())",
    "methods": "lab.MethodsLab(workload)",
    "cost": "lab.CostExplorer(Estimator(), read_gpus(), find_model('mixtral-8x7b'))",
}
NARROW = {"width": 900, "height": 1000}
SLOWER = 12  # times than this machine
# FNV-1a over the pixels, as `live_figure.digest` has it.
DIGEST = """canvas => {
    const pixels = new Uint32Array(
        canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.buffer);
    let sum = 2166136261;
    for (const pixel of pixels) sum = Math.imul(sum ^ pixel, 16777619) >>> 0;
    return sum;
}"""

NOTEBOOKS = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
LAPTOP = {"width": 1366, "height": 768}
IN_SIGHT = """selector => [...document.querySelectorAll(selector)].filter(one => {
    const {top, bottom} = one.getBoundingClientRect();
    return top >= 0 && bottom <= innerHeight && one.checkVisibility();
}).map(one => one.innerText)"""

every_widget = pytest.mark.parametrize("name", WIDGETS)


@pytest.fixture(scope="module")
def screen(open_cells):
    return open_cells("screens", SETUP, *WIDGETS.values())


@every_widget
def test_the_keyboard_reaches_every_control(screen, name):
    assert ", ".join(screen.controls_without_tab(WIDGETS[name].split("\n")[0])) == ""


@every_widget
def test_a_narrow_window_hides_and_stacks_nothing(screen, name):
    screen.page.set_viewport_size(NARROW)
    screen.scroll_to(WIDGETS[name].split("\n")[0])
    assert "; ".join(screen.boxes_in_the_way(WIDGETS[name].split("\n")[0])) == ""
    assert "; ".join(screen.sideways(WIDGETS[name].split("\n")[0])) == ""


def test_a_design_that_does_not_fit_is_refused_and_not_awaited(screen):
    screen.page.set_viewport_size(SIZE)
    screen.scroll_to("lab.DesignExplorer")
    screen.set_slider("encoders", 8)
    assert "8 encoders, rank 12, bi-directional" in screen.wait_for_text("does not fit;")
    screen.until(lambda: "to come" not in screen.wait_for_text("does not fit;"))
    assert "may have stopped" not in screen.scroll_to("lab.DesignExplorer").inner_text()
    screen.set_slider("encoders", 2)
    assert "an epoch of" in screen.wait_for_text("2 encoders, rank 12, bi-directional")


def test_a_slow_browser_shows_what_a_fresh_drawing_shows(screen):
    screen.page.set_viewport_size(SIZE)
    canvas = screen.scroll_to("board = lab.Dashboard").locator(".jupyter-matplotlib-canvas-container canvas").first
    before = canvas.evaluate(DIGEST)
    processor = screen.page.context.new_cdp_session(screen.page)
    screen.run_new("board.start()\nboard.wait()", wait=False)
    processor.send("Emulation.setCPUThrottlingRate", {"rate": SLOWER})
    screen.all_ran()
    processor.send("Emulation.setCPUThrottlingRate", {"rate": 1})
    digest = int(screen.python("fresh(board)"))
    screen.until(lambda: canvas.evaluate(DIGEST) == digest)
    assert digest != before


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_while_the_first_cell_runs_the_page_says_how_long_it_takes(open_notebook, name):
    lab = open_notebook(name)
    lab.page.set_viewport_size(LAPTOP)
    cell = lab.page.locator(".jp-CodeCell").first
    cell.locator(".cm-content").click()
    lab.page.keyboard.press("Shift+Enter")
    lab.until(lambda: cell.locator(".jp-InputPrompt").inner_text().strip(" :") in ("[*]", "[1]"))
    lab.page.wait_for_timeout(500)  # until it has scrolled
    assert any("busy computer" in text for text in lab.page.evaluate(IN_SIGHT, ".jp-MarkdownOutput p"))
    assert any(text.startswith("[") for text in lab.page.evaluate(IN_SIGHT, ".jp-InputPrompt"))
    lab.shut_down()
