"""The notebooks in JupyterLab, as a reader has them: clicks, sliders, and what the page shows then."""

import functools
import json
import re
from pathlib import Path

import pytest
from lab_page import PATIENCE, LabPage
from playwright.sync_api import expect

pytestmark = pytest.mark.long

SCORES = "intent_accuracy", "slot_f1", "frame_accuracy"
CARD = "emulated U50, TT bi-directional"
BASELINE = "PyTorch CPU, TT bi-directional"
FIGURE = ".jupyter-matplotlib-canvas-container canvas"
PIXELS = "canvas => canvas.toDataURL()"
DRAWN = """canvas => canvas.width > 0 &&
    canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some(value => value > 0)"""
OUR_THREADS = "sum(thread.name.startswith('bttlab') for thread in __import__('threading').enumerate())"
PARAMETERS_AT_THE_END = "f'{truncate(trained, OUT_MODES, IN_MODES, 128).parameters:,}'"
BUSY = "while board.runs[-1].state != 'stopped':\n    np.linalg.svd(np.ones((300, 300)))"
# Notes every picture that the figure shows; a picture is known by a sum over its data.
WATCH_FIGURE = """selector => {
    window.pictures = new Set();
    window.watching = setInterval(() => {
        const canvas = document.querySelector(selector);
        if (canvas === null || canvas.width === 0) return;
        const data = canvas.toDataURL();
        let sum = 0;
        for (let k = 0; k < data.length; k += 7) sum = (sum * 31 + data.charCodeAt(k)) | 0;
        window.pictures.add(sum);
    }, 100);
}"""


def _counted(text: str) -> int:
    """The samples in a line such as "running · 1,024 of 20,000 samples"."""
    return int(re.search(r"([\d,]+) of", text)[1].replace(",", ""))


def test_the_rank_slider_redraws_error_and_size(open_notebook):
    lab = open_notebook("01_tensor_compression")
    lab.run_new("import os; os.environ['BTTLAB_QUICK'] = '1'")
    for cell in ("import numpy as np", "OUT_MODES, IN_MODES =", "config = ModelConfig", "explorer = Compression"):
        lab.run_cell_with(cell)
    assert lab.errors == []
    lab.scroll_to("explorer = CompressionExplorer")
    # The explorer's figures come after that of the training; a figure has a second canvas, for zooming.
    picture = lab.page.locator(".jupyter-matplotlib-canvas-container").last.locator("canvas").first
    lab.until(lambda: picture.evaluate(DRAWN))
    before = picture.evaluate(PIXELS)
    for _ in range(12):
        lab.slider("rank").press("ArrowRight")
    found = lab.python("'{0.parameters:,} {0.error:.2%}'.format(truncate(trained, OUT_MODES, IN_MODES, 24))").split()
    assert explorer_numbers(lab.wait_for_text(f"{found[0]} parameters")) == found
    lab.until(lambda: picture.evaluate(PIXELS) != before)
    assert "at the slider's end, 128, more than half of the norm is still lost" in lab.prose()
    lab.set_slider("rank", 999)
    error = explorer_numbers(lab.wait_for_text(f"{lab.python(PARAMETERS_AT_THE_END)} parameters"))[1]
    assert float(error.rstrip("%")) > 50
    assert lab.errors == []


def explorer_numbers(text: str) -> list[str]:
    """Parameters and error in the explorer's line of results."""
    return [re.match(r"([\d,]+) parameters", text)[1], re.search(r"error ([\d.]+%)", text)[1]]


def dashboard(lab: LabPage) -> LabPage:
    """Run what the dashboard of notebook 03 needs, unless the kernel has it, and the dashboard again."""
    if lab.python("'overlay' in globals()") == "False":
        for cell in ("LEARNING_RATE = 4e-3", "corpus = corpus_here", "overlay = load_overlay"):
            lab.run_cell_with(cell)
    lab.run_cell_with("board = Dashboard")
    assert lab.errors == []
    lab.scroll_to("board = Dashboard")
    return lab


def no_thread_stays(lab: LabPage) -> None:
    """Wait until all of ours have ended: a run is entered in the index before its thread ends."""
    lab.until(lambda: lab.python(OUR_THREADS) == "0")


@pytest.fixture(scope="module")
def notebook_03(open_notebook):
    """Notebook 03 opened: a page for all who ask, until one of them fails."""
    return functools.cache(lambda: open_notebook("03_train_on_the_u50"))


@pytest.fixture
def lab(notebook_03, request) -> LabPage:
    """Notebook 03 with a new dashboard."""
    failed = request.session.testsfailed
    yield dashboard(notebook_03())
    if request.session.testsfailed > failed:
        notebook_03().close()
        notebook_03.cache_clear()


def test_training_under_the_dashboard(lab):
    for name in ("Pause", "Continue", "Stop", "Clear"):
        expect(lab.button(name)).to_be_disabled()

    lab.set_slider("samples", 45_000)
    lab.button("Start").click()
    lab.wait_for_text("running")
    lab.run_new(BUSY, wait=False)
    busy = lab.cell_with("while board.runs")
    lab.scroll_to("board = Dashboard")
    lab.page.evaluate(WATCH_FIGURE, FIGURE)
    lab.page.wait_for_function("() => window.pictures.size >= 3", timeout=1000 * PATIENCE)
    assert "[*]" in busy.locator(".jp-InputPrompt").inner_text()  # the other cell has been computing all the while
    lab.page.evaluate("() => clearInterval(window.watching)")

    lab.button("Pause").click()  # it acts while the other cell still computes
    held = _counted(lab.wait_for_text("paused"))
    expect(lab.button("Start")).to_be_disabled()
    lab.button("Continue").click()
    lab.until(lambda: _counted(lab.wait_for_text("running")) >= held)  # the words come with the next picture
    lab.button("Stop").click()
    assert held <= _counted(lab.wait_for_text("stopped")) < 45_000
    no_thread_stays(lab)

    lab.scroll_to("board = Dashboard")
    lab.select("train on", BASELINE)
    lab.set_slider("samples", 100)
    lab.button("Start").click()
    lab.wait_for_text("finished")
    words = lab.wait_for_hidden("finished after 100 of 100 samples")
    assert f"1 {CARD}, sgd, learning rate 0.004, seed 0; time and energy modelled: stopped" in words
    assert f"2 {BASELINE}, sgd" in words
    no_thread_stays(lab)
    assert lab.errors == []


def test_running_the_cell_again_and_the_saved_notebook(lab, lab_folder):
    lab.button("Start").click()
    lab.wait_for_text("running")
    lab.run_cell_with("board = Dashboard")
    no_thread_stays(lab)
    lab.scroll_to("board = Dashboard")
    lab.set_slider("samples", 500)
    lab.button("Start").click()
    lab.wait_for_text("finished")
    kept = lab.page.locator("div[class^='bttlab-kept']").first
    kept.wait_for(state="attached")
    assert not kept.is_visible()  # the live figure is there, so the kept one is not shown
    for _ in range(20):  # the last picture is kept a moment after the end, and an older save may be on its way
        with lab.page.expect_response(lambda reply: reply.request.method == "PUT" and "/api/contents/" in reply.url):
            lab.page.keyboard.press("Control+S")
        html = _saved_html(lab_folder / "notebooks" / "03_train_on_the_u50.ipynb")
        if "data:image" in html:  # not only the note for a page without the widget
            break
        lab.page.wait_for_timeout(500)
    assert "data:image/png;base64," in html


def test_restarting_the_kernel_while_it_trains(lab):
    lab.set_slider("samples", 45_000)
    lab.button("Start").click()
    lab.wait_for_text("running")
    before = lab.python("__import__('os').getpid()")
    lab.restart()
    lab.scroll_to("board = Dashboard")
    expect(lab.page.locator(".bttlab-stale-note").first).to_be_visible()  # of the dashboard, which nothing updates now
    assert lab.python("__import__('os').getpid()") != before
    no_thread_stays(lab)


def test_closing_the_tab_while_it_trains(lab):
    """The kernel lives on without its page, so the training goes on to its end; then nothing holds the card."""
    lab.set_slider("samples", 1_000)
    lab.button("Start").click()
    lab.wait_for_text("running")
    lab.reopen()
    lab.run_new("board.wait()")
    assert lab.python("f'{board.runs[-1].state} {board.runs[-1].count}'") == "finished 1000"
    no_thread_stays(lab)
    assert len(eval(lab.python("trainer.train(train[:3], Optimizer('sgd'), LEARNING_RATE).tolist()"))) == 3
    assert lab.errors == []


def test_interrupting_the_kernel_while_it_trains(lab):
    lab.run_new("board.start(samples=45_000); board.wait()", wait=False)
    lab.scroll_to("board = Dashboard")
    lab.until(lambda: _counted(lab.wait_for_text("running")) > 0)  # the cell is in `wait` now
    lab.interrupt()
    assert "interrupted: the run was stopped" in lab.wait_for_text("interrupted")
    assert lab.python("board.runs[-1].state") == "stopped"
    no_thread_stays(lab)
    assert lab.errors == []


def test_a_run_that_diverges_goes_on_with_its_last_good_parameters(lab):
    """And the run that is opened again has the scores that it ended with."""
    lab.select("train on", f"{CARD}, beside a modelled RTX-3090")
    lab.set_slider("samples", 12_000)  # not done before the slider is moved, on a busy machine either
    lab.button("Start").click()
    lab.until(lambda: _counted(lab.wait_for_text("running")) > 700)  # so that there are good parameters
    lab.set_slider("learning rate", 1)
    assert "with the last good parameters, those after" in lab.wait_for_text("Set the learning rate's slider below 1")
    lab.button("Continue").click()
    lab.wait_for_text("set the slider lower, then Continue")
    lab.set_slider("learning rate", 0.001)
    lab.button("Continue").click()
    lab.wait_for_text("finished")
    assert float(lab.python("board.runs[0].losses[-300:].mean()")) < 5
    lab.select("draw", "power")
    assert lab.python("board._figure.energy.get_title('left')") == "Power (W)"
    no_thread_stays(lab)
    lab.run_cell_with("def show(name")
    lab.run_cell_with("browser = RunBrowser")
    shown = lab.run_cell_with("if browser.chosen").locator(".jp-OutputArea-output").inner_text()
    _, scores = eval(lab.python("board.runs[0].scores[-1]"))
    assert [f"{scores[name]:.1%}" for name in SCORES] == re.findall(r"[\d.]+%", shown)
    assert lab.errors == []


def test_without_ipympl(lab):  # the last of these tests: its dashboard stays on the page
    lab.run_new("%matplotlib inline\nboard = Dashboard([card_target(overlay, workload)], samples=500)\nboard")
    image = lab.page.locator(".jupyter-widgets.widget-image").last
    image.wait_for()
    before = image.get_attribute("src")
    lab.button("Start").click()
    lab.wait_for_text("finished")
    expect(image).not_to_have_attribute("src", before)
    assert lab.errors == []


def _saved_html(path: Path) -> str:
    """Return the HTML of the dashboard's cell in a saved notebook."""
    cells = json.loads(path.read_text())["cells"]
    cell = next(cell for cell in cells if "board = Dashboard" in "".join(cell["source"]))
    return "".join("".join(output["data"].get("text/html", "")) for output in cell["outputs"] if "data" in output)


TEACH = """
from bttlab.card import load_overlay
from bttlab.data import Vocabulary, load_corpus
from bttlab.lab import Teach
from bttlab.model import ModelConfig, initial_parameters

corpus, config = load_corpus("airline"), ModelConfig(encoders=2)
vocabulary = Vocabulary.from_sentences(corpus.train.words, config.vocabulary_size)
trainer = load_overlay("trainer").trainer_1
trainer.load_program(config)
trainer.load_parameters(initial_parameters(config, seed=0))
"""


@pytest.fixture(scope="module")
def taught(open_cells) -> LabPage:
    """A notebook in which the card is taught."""
    return open_cells("teach", TEACH, "teach = Teach(trainer, corpus, vocabulary)\nteach")


def test_the_card_is_taught_by_keyboard(taught):
    """Typed, asked, corrected, trained and taken back without a mouse."""
    lab = taught
    keys, page = lab.page.keyboard, lab.page
    page.get_by_placeholder("type a sentence and press Enter").focus()
    keys.insert_text("fly to denver")
    keys.press("Enter")
    page.get_by_role("button", name="denver", exact=True).wait_for()
    assert lab.controls_without_tab("teach = Teach") == []
    page.get_by_role("button", name="denver", exact=True).focus()
    keys.press("Enter")
    menu = page.locator(".widget-dropdown select").last
    expect(menu).to_be_focused()
    lab.choose_label("toloc.city_name")
    lab.button("Train").focus()
    lab.until(lambda: lab.python("teach.answer.tags[2]") == "B-toloc.city_name")
    lab.button("Train").focus()
    keys.press("Enter")
    assert "(measured)" in lab.wait_for_text("Loss of this sentence")
    lab.until(lambda: lab.python("len(teach.taught)") == "1")
    lab.button("Undo").focus()
    keys.press("Enter")
    lab.wait_for_text("from before the last training")
    assert lab.python("len(teach.taught)") == "0" and lab.errors == []
    assert lab.boxes_in_the_way("teach = Teach") == []


def test_a_reopened_notebook_shows_the_kept_answer(taught):
    """Saved, its kernel shut down, opened again: the widget is gone, what it showed is there, and no error."""
    lab = taught
    lab.run_new("teach.ask('fly to denver')")
    lab.page.wait_for_timeout(500)
    with lab.page.expect_response(lambda reply: reply.request.method == "PUT" and "/api/contents/" in reply.url):
        lab.page.keyboard.press("Control+S")
    lab.shut_down()
    lab.reopen()
    expect(lab.page.locator("div[class^='bttlab-kept']")).to_be_visible()
    lab.page.wait_for_timeout(2000)
    missing = lab.page.get_by_text("Error displaying widget")
    assert missing.count() == 1 and not missing.is_visible()  # JupyterLab says it; a rule of CSS hides it
