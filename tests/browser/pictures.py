"""The pictures of README and docs, taken of the running notebooks: `make pictures`; docs/images has them."""

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from lab_page import LabPage
from PIL import Image
from playwright.sync_api import Locator

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
    def opened(name: str) -> LabPage:
        lab = open_notebook(name)
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


def test_flows(opened):
    lab = opened("02_contraction_flow")
    cells = ("import torch", "layer = TTLinear", "explorer = FlowExplorer", "from bttlab.card import load_overlay")
    run(lab, *cells, "draw_schedule({name: run.program")
    take(lab, "schedule", output(lab, "draw_schedule({name: run.program"))
