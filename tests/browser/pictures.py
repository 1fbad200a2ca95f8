"""The pictures of README and docs, taken of the running notebooks: `make pictures`; docs/images has them."""

import base64
import io
import json
from collections.abc import Callable

import jupyterlab
import nbformat
import pytest
from lab_page import LabPage
from picture_sources import IMAGES, save
from PIL import Image, ImageChops
from playwright.sync_api import Locator
from test_every_screen import SETUP
from test_widgets_in_browser import ALL, MORE, findings

NOTEBOOK = IMAGES.parents[1] / "notebooks" / "00_start_here.ipynb"
RECORD = IMAGES.parents[1] / "data" / "accessibility.json"
COLOURS = 96  # of a picture: figures have few, and the repository stays small
SETTLED = 1500  # milliseconds after the last change


def take(lab: LabPage, name: str, shown: Locator) -> None:
    """Keep a picture of a part of the page, whole and with few colours."""
    lab.page.mouse.move(2, 2)  # no tools under the mouse
    lab.page.wait_for_timeout(SETTLED)
    picture = Image.open(io.BytesIO(shown.screenshot())).convert("RGB")
    save(picture.quantize(COLOURS, dither=Image.Dither.NONE), name)


def output(lab: LabPage, source: str) -> Locator:
    """Return the output of the cell with a source."""
    return lab.cell_with(source).locator(".jp-OutputArea-output:visible").last


def run(lab: LabPage, *sources: str) -> None:
    """Run cells, and see that they ran."""
    for source in sources:
        lab.run_cell_with(source)
    assert lab.errors == []


@pytest.fixture(scope="session")
def lab_corpora() -> dict[str, str]:
    """Whole corpora."""
    return {}


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
    lab.page.wait_for_function("() => /of [5-9],\\d+ samples/.test(document.body.innerText)", timeout=300_000)
    lab.interrupt()
    lab.until(lambda: "*" not in cell.locator(".jp-InputPrompt").inner_text())
    lab.page.add_style_tag(content=".jp-OutputArea-child:has([data-mime-type*='stdout']) { display: none }")
    take(lab, "first_minute", cell.locator(".jp-OutputArea"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)  # which shows it before its first cell runs
    picture = base64.b64encode((IMAGES / "first_minute.png").read_bytes()).decode()
    notebook.cells[0].attachments["first_minute.png"]["image/png"] = picture
    nbformat.write(notebook, NOTEBOOK)


def test_flows(opened):
    lab = opened("02_contraction_flow")
    cells = ("import torch", "layer = TTLinear", "explorer = FlowExplorer", "from bttlab.card import load_overlay")
    run(lab, *cells, "draw_schedule({name: run.program")
    take(lab, "schedule", output(lab, "draw_schedule({name: run.program"))


TEACH = """
import numpy as np
from bttlab.card import load_overlay
from bttlab.data import Vocabulary, encode, epoch_order, load_corpus
from bttlab.lab import Teach
from bttlab.model import ModelConfig, Optimizer, initial_parameters

corpus, config = load_corpus("airline"), ModelConfig(encoders=2)
vocabulary = Vocabulary.from_sentences(corpus.train.words, config.vocabulary_size)
train = encode(corpus.train, vocabulary, corpus, config)
trainer = load_overlay("trainer").trainer_1
trainer.load_program(config)
trainer.load_parameters(initial_parameters(config, seed=0))
for epoch in range(3):
    trainer.train(train[epoch_order(len(train), 0, epoch)], Optimizer("sgd"), 4e-3)
"""
SHOW = 'teach = Teach(trainer, corpus, vocabulary, "take me home to pittsburgh please")\nteach'


def test_teach(open_cells):
    """A film strip: asked, a word chosen, corrected, trained, taken back."""
    lab = open_cells("teach_strip", TEACH, SHOW)
    lab.page.set_viewport_size({"width": 1150, "height": 1300})
    strip = []

    def picture() -> None:
        lab.page.mouse.move(2, 2)
        lab.page.wait_for_timeout(SETTLED)
        shown = output(lab, "teach = Teach").screenshot()
        one = Image.open(io.BytesIO(shown)).convert("RGB")
        strip.append(one.crop((0, 0, one.width, min(one.height, 420))))

    picture()
    lab.page.get_by_role("button", name="pittsburgh", exact=True).click()
    lab.wait_for_text("sentences taught")
    picture()
    lab.choose_label("toloc.city_name")
    picture()
    lab.button("Train").click()
    lab.wait_for_text("Loss of this sentence")
    picture()
    lab.button("Undo").click()
    lab.wait_for_text("from before the last training")
    picture()
    heights = [_used(one) for one in strip]
    width = strip[0].width
    whole = Image.new("RGB", (width, sum(heights) + 8 * len(strip)), "#888888")
    top = 0
    for one, height in zip(strip, heights, strict=True):
        whole.paste(one.crop((0, 0, width, height)), (0, top))
        top += height + 8
    save(whole.quantize(COLOURS, dither=Image.Dither.NONE), "teach")


def _used(picture: Image.Image) -> int:
    """Return the height down to the last row that is not white."""
    box = ImageChops.difference(picture, Image.new("RGB", picture.size, "white")).getbbox()
    return min(picture.height, box[3] + 8)


def test_accessibility(open_cells):
    """No picture, but a record: what axe-core finds in each widget."""
    version, found = findings(open_cells("widgets", SETUP + MORE, *ALL.values()))
    rules = {name: {key: impact for key, (impact, _) in broken.items()} for name, broken in found.items()}
    record = {"how": "make pictures", "axe-core": version, "jupyterlab": jupyterlab.__version__, "findings": rules}
    RECORD.write_text(json.dumps(record, indent=1) + "\n")


FILM = """%matplotlib inline
from bttlab.data import load_corpus
from bttlab.lab import StepFilm, Workload
from bttlab.model import ModelConfig

film = StepFilm(Workload.of(load_corpus("airline"), ModelConfig()).train)
film"""
SCENES = {  # five cycles of a step: the flow, and the share of the step or its peak
    "film_begin": ("bidirectional", "0"),
    "film_forward": ("bidirectional", "film.film.cycles // 6"),
    "film_peak": ("bidirectional", "film.film.peak"),
    "film_backward": ("bidirectional", "2 * film.film.cycles // 3"),
    "film_right_to_left": ("right_to_left", "film.film.peak"),
}


def test_film(open_cells):
    lab = open_cells("film", FILM)
    figures = lab.page.locator(".bttlab-widget img.bttlab-figure")
    for name, (flow, cycle) in SCENES.items():
        before = figures.first.get_attribute("src")
        lab.run_new(f"film.flow.value = '{flow}'\nfilm._go({cycle})")
        if name != "film_begin":
            lab.until(lambda before=before: figures.first.get_attribute("src") != before)
        lab.scroll_to("film = StepFilm")
        take(lab, name, lab.page.locator(".widget-hbox:has(> img.bttlab-figure)"))
