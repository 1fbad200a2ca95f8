"""The pictures of README and docs, taken of the running notebooks: `make pictures`; docs/images has them."""

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from lab_page import LabPage
from PIL import Image
from playwright.sync_api import Locator
from test_lab_in_browser import dashboard

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
COLOURS = 96  # of a picture: figures have few, and the repository stays small
SETTLED = 1500  # milliseconds after the last change


def take(lab: LabPage, name: str, shown: Locator) -> None:
    """Keep a picture of a part of the page, whole and with few colours."""
    lab.page.mouse.move(2, 2)  # no tools under the mouse
    lab.page.wait_for_timeout(SETTLED)
    picture = Image.open(io.BytesIO(shown.screenshot())).convert("RGB")
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(IMAGES / f"{name}.png", optimize=True)


def output(lab: LabPage, source: str) -> Locator:
    """Return the output of the cell with a source."""
    return lab.cell_with(source).locator(".jp-OutputArea-output:visible").last


def run(lab: LabPage, *sources: str) -> None:
    """Run cells, and see that they ran."""
    for source in sources:
        lab.run_cell_with(source)
    assert lab.errors == []


@pytest.fixture
def opened(open_notebook) -> Callable[..., LabPage]:
    def opened(name: str, dark: bool = False) -> LabPage:
        lab = open_notebook(name, dark)
        lab.page.set_viewport_size({"width": 1400, "height": 1600})
        return lab

    return opened


def test_first_minute(opened):
    lab = opened("00_start_here")
    run(lab, "import numpy as np")
    cell = lab.run_cell_with("LEARNING_RATE = 4e-3", wait=False)
    lab.page.wait_for_function("() => /after 9,\\d+ samples/.test(document.body.innerText)", timeout=120_000)
    lab.interrupt()
    lab.until(lambda: "*" not in cell.locator(".jp-InputPrompt").inner_text())
    lab.page.add_style_tag(content=".jp-OutputArea-child:has([data-mime-type*='stdout']) { display: none }")
    take(lab, "first_minute", cell.locator(".jp-OutputArea"))


def test_dashboard(opened):
    lab = dashboard(opened("03_train_on_the_u50", dark=True))
    lab.run_new("for name, samples in (('modelled RTX-3090, TT bi-directional', 600), (targets[0].name, 6000)):\n"
                "    board.start(name, samples)\n    board.wait()")  # fmt: skip
    lab.scroll_to("board = Dashboard")
    lab.select("optimizer", "adamw")
    lab.set_slider("samples", 6000)
    lab.button("Start").click()
    lab.page.wait_for_function("() => /running · [3-5],\\d+ of/.test(document.body.innerText)", timeout=120_000)
    take(lab, "dashboard_dark", output(lab, "board = Dashboard"))
    lab.button("Stop").click()
    lab.wait_for_text("stopped")


def test_compression(opened):
    lab = opened("01_tensor_compression")
    run(lab, "import torch", "OUT_MODES, IN_MODES = ", "config = ModelConfig", "explorer = CompressionExplorer")
    take(lab, "compression", output(lab, "explorer = CompressionExplorer"))


def test_flows(opened):
    lab = opened("02_contraction_flow")
    cells = ("import torch", "layer = TTLinear", "explorer = FlowExplorer", "from bttlab.card import load_overlay")
    run(lab, *cells, "draw_schedule({name: run.program")
    take(lab, "schedule", output(lab, "draw_schedule({name: run.program"))
    lab.scroll_to("explorer = FlowExplorer")
    lab.until_text("in memory now: L2 1,152", lambda: lab.select("flow", "bi-directional"))
    lab.until_text("step 4 of", lambda: lab.set_slider("step", 4))
    take(lab, "flow_bidirectional", output(lab, "explorer = FlowExplorer"))


def test_memory_and_energy(opened):
    lab = opened("04_memory_and_energy")
    cells = {"memory": "workload = Workload.of", "banks": "draw_banks(cards", "energy": "draw_energy(cards)"}
    run(lab, "from collections import Counter", *cells.values())
    for name, source in cells.items():
        take(lab, name, output(lab, source))


@pytest.mark.parametrize("name, dark", [("design_space", False), ("design_space_dark", True)])
def test_design_space(opened, name, dark):
    lab = opened("05_design_space", dark)
    run(lab, "%matplotlib widget", "design = Design(", "explorer = DesignExplorer")
    assert lab.python("explorer.programs.wait(300)") == "True"
    lab.scroll_to("explorer = DesignExplorer")
    take(lab, name, output(lab, "explorer = DesignExplorer"))


def test_methods(opened):
    lab = opened("06_efficient_training")
    run(lab, "%matplotlib widget", "lab = MethodsLab", 'for combination in ("dense", "tensor")')
    take(lab, "methods_lab", output(lab, "lab = MethodsLab"))


def test_cost(opened):
    lab = opened("07_what_would_it_cost")
    run(lab, "from dataclasses import replace", "tokens, query = ", "explorer = lab.CostExplorer")
    take(lab, "cost", output(lab, "explorer = lab.CostExplorer"))
