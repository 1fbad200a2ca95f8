"""Every widget of ours on a page: its keys, its names for screen readers, and what it says when the kernel is gone."""

import json

import nbformat
import psutil
import pytest
from axe_playwright_python.sync_playwright import Axe
from lab_page import TOKEN, LabPage, NotebookPage, served
from playwright.sync_api import expect
from test_every_screen import SETUP, WIDGETS

pytestmark = pytest.mark.long

ASKED = "lab.Teach(teacher, corpus, vocabulary, 'fly to denver')"
ALL = WIDGETS | {
    "teach": ASKED,
    "inside": "lab.InsideExplorer(teacher, corpus, vocabulary, 'fly to denver')",
    "film": "lab.StepFilm(samples, ModelConfig(encoders=1), tokens=9)",
    "graph": "lab.GraphExplorer(config)",
    "watch": "lab.watch_trainer(teacher, samples, Optimizer('sgd'), 1e-3, 'training')",
    "sweep": "lab.SweepView(SweepSpec(name='none', vary={'linear_rank': [4]}, kind='estimate'))",
}
MORE = """
from bttlab.data import Vocabulary, encode
from bttlab.model import Optimizer, ReferenceTrainer
from bttlab.runs.sweep import SweepSpec

corpus, config = load_corpus("airline"), ModelConfig(encoders=1)
vocabulary = Vocabulary.from_sentences(corpus.train.words, config.vocabulary_size)
samples = encode(corpus.train, vocabulary, corpus, config)[:2]
teacher = ReferenceTrainer(config)"""
GRAVE = "serious", "critical"
LETTERS = "axmdd00yzcvr"  # commands of JupyterLab, where they are not a control's
CELLS = "() => document.querySelectorAll('.jp-Notebook .jp-Cell').length"
# The controls of an output that are in use; each is marked, to be found again.
MARK = """cell => {
    const kinds = ':is(select, button, .noUi-handle, input[type=checkbox])';
    const found = [...cell.querySelectorAll(`.jp-OutputArea-output ${kinds}`)];
    const shown = found.filter(one => one.checkVisibility() && !one.disabled && !one.closest('.jupyter-matplotlib'));
    const one_of_each = new Map(shown.map(one => [one.tagName + one.className, one]));
    [...one_of_each.values()].forEach((one, place) => { one.dataset.marked = place; });
    return one_of_each.size;
}"""


@pytest.fixture(scope="module")
def screen(open_cells) -> LabPage:
    return open_cells("widgets", SETUP + MORE, *ALL.values())


def _first_line(name: str) -> str:
    return ALL[name].split("\n")[0]


@pytest.mark.parametrize("name", ALL)
def test_letters_typed_into_a_control_are_no_commands_of_the_notebook(screen, name):
    """One control of each kind, all letters; every kind of control is left with the focus that it had."""
    page = screen.page
    cell = screen.scroll_to(_first_line(name))
    page.keyboard.press("Escape")
    before, kinds = page.evaluate(CELLS), cell.evaluate(MARK)
    for place in range(kinds):
        control = cell.locator(f"[data-marked='{place}']").first
        control.focus()
        for letter in LETTERS:
            page.keyboard.press(letter)
        assert page.evaluate(CELLS) == before, control.evaluate("one => one.outerHTML")
        assert control.evaluate("one => one === document.activeElement")
    assert (kinds > 0) == (name != "watch")
    assert page.locator(".jp-Dialog").count() == 0 and screen.errors == []


def test_letters_are_no_commands_of_jupyter_notebook_either(lab_folder, lab_corpora, browser):
    pytest.importorskip("notebook")
    cells = [nbformat.v4.new_code_cell(source) for source in ("from bttlab import lab", WIDGETS["flow"])]
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=metadata), lab_folder / "notebooks" / "seven.ipynb")
    with served(lab_folder, lab_corpora, "notebook") as url, browser.new_context() as context:
        notebook = NotebookPage(context, url, TOKEN, "seven")
        notebook.run_all()
        page = notebook.page
        page.wait_for_selector(".bttlab-widget [aria-label='tokens']")  # its JavaScript has begun
        before = page.evaluate(CELLS)
        for kind in ("select", ".noUi-handle", "button"):
            page.locator(f".jp-OutputArea {kind}").first.focus()
            for letter in LETTERS:
                page.keyboard.press(letter)
            assert page.evaluate(CELLS) == before == 2, kind
        notebook.close()


def test_commands_with_control_are_the_notebooks_in_a_control_too(screen):
    with screen.page.expect_response(lambda reply: reply.request.method == "PUT" and "/api/contents/" in reply.url):
        screen.scroll_to(WIDGETS["flow"]).locator("select").first.focus()
        screen.page.keyboard.press("Control+S")


def findings(screen: LabPage) -> tuple[str, dict[str, dict[str, tuple[str, list[str]]]]]:
    """Return axe-core's version, and of each widget the rules that it breaks: their impact, and the elements."""
    found, version = {}, ""
    for name in ALL:
        cell = screen.scroll_to(_first_line(name))
        cell.evaluate("(cell, name) => { cell.querySelector('.jp-OutputArea').dataset.axe = name; }", name)
        run = Axe().run(screen.page, context=f"[data-axe='{name}']", options={"resultTypes": ["violations"]})
        version = run.response["testEngine"]["version"]
        found[name] = {
            rule["id"]: (rule["impact"], [node["html"][:150] for node in rule["nodes"]])
            for rule in run.response["violations"]
        }
    return version, found


def test_after_a_click_beside_a_cell_letters_are_the_notebooks_again(screen):
    page, cell = screen.page, screen.scroll_to(WIDGETS["flow"])
    cell.get_by_role("button", name="backward").click()
    before = page.evaluate(CELLS)
    cell.locator(".jp-InputPrompt").click()
    page.keyboard.press("b")
    screen.until(lambda: page.evaluate(CELLS) == before + 1)
    page.keyboard.press("d")
    page.keyboard.press("d")
    screen.until(lambda: page.evaluate(CELLS) == before)


def test_axe_finds_nothing_serious_or_critical(screen):
    _, found = findings(screen)
    grave = {name: [key for key, (impact, _) in rules.items() if impact in GRAVE] for name, rules in found.items()}
    assert not any(grave.values()), json.dumps(found, indent=1)


def test_a_slider_has_its_name_and_its_value_as_shown(screen):
    board = screen.scroll_to(_first_line("dashboard"))
    handle = board.locator(".noUi-handle[aria-label='learning rate']")
    expect(handle).to_have_attribute("aria-valuetext", "4.0e-3")
    handle.press("ArrowRight")
    expect(handle).to_have_attribute("aria-valuetext", "4.2e-3")


def test_a_figure_is_described_once_with_its_present_values(screen):
    cell = screen.scroll_to(_first_line("compression"))
    figures = cell.locator(":is(img.bttlab-figure, .jupyter-matplotlib-canvas-div canvas:first-child):visible")
    texts = figures.evaluate_all("all => all.map(one => one.getAttribute('alt') ?? one.getAttribute('aria-label'))")
    assert len(set(texts)) == 3 and all(texts)
    assert "Parameters" in texts[2]
    screen.slider("rank").first.press("ArrowRight")
    screen.until(lambda: figures.last.evaluate("one => one.getAttribute('aria-label')") != texts[2])


def test_an_operation_of_the_graph_by_keyboard_and_by_mouse(screen):
    page, cell = screen.page, screen.scroll_to(_first_line("graph"))
    operations = cell.locator("select").first
    chosen = "list => list.selectedOptions[0].text.split('\\u00a0')[0]"
    operations.focus()
    page.keyboard.press("Home")
    screen.wait_for_text("embedding.word: ")
    page.keyboard.press("ArrowDown")
    screen.wait_for_text("embedding.position.weight: ")
    assert operations.evaluate(chosen) == "embedding.position.weight"
    canvas = cell.locator(".jupyter-matplotlib-canvas-div canvas").last
    canvas.click(position={"x": 150, "y": canvas.bounding_box()["height"] / 2})
    screen.until(lambda: operations.evaluate(chosen).startswith("encoders.0."))
    name = operations.evaluate(chosen)
    assert "instructions" in screen.wait_for_text(f"{name}: ")
    region = cell.get_by_role("region", name=f"Instructions of {name} at 13 tokens")
    assert "engine" in region.inner_text() or "vector" in region.inner_text()


def test_undo_leaves_the_focus_in_the_widget(screen):
    page = screen.page
    screen.scroll_to(ASKED)
    page.get_by_role("button", name="denver", exact=True).focus()
    page.keyboard.press("Enter")
    menu = screen.scroll_to(ASKED).locator(".widget-dropdown select").last
    expect(menu).to_be_focused()
    page.keyboard.type("toloc.city_na")  # as a list is used by keyboard
    page.keyboard.press("Enter")
    screen.until(lambda: "toloc.city_name" in screen.scroll_to(ASKED).locator(".bttlab-result").first.inner_text())
    train, undo = (screen.scroll_to(ASKED).get_by_role("button", name=name) for name in ("Train", "Undo"))
    train.focus()
    page.keyboard.press("Enter")
    expect(undo).to_be_enabled()
    undo.focus()
    page.keyboard.press("Enter")
    expect(undo).to_be_disabled()
    expect(train).to_be_focused()
    assert "yours" in screen.scroll_to(ASKED).inner_text()  # the correction stays


def test_a_sweep_starts_and_stops_by_keyboard(screen):
    cell = screen.scroll_to(_first_line("sweep"))
    start, stop = (cell.get_by_role("button", name=name) for name in ("Start", "Stop"))
    start.focus()
    screen.page.keyboard.press("Enter")
    expect(stop).to_be_focused()
    screen.page.keyboard.press("Enter")
    expect(start).to_be_focused()
    expect(stop).to_be_disabled()
    assert screen.errors == []


def test_a_kernel_that_does_not_answer_is_said_until_it_does(screen):
    """The kernel's process is halted: while a cell runs, one with subshells (ipykernel 7) still answers a widget."""
    cell = screen.scroll_to(_first_line("flow"))
    note, flow = cell.locator(".bttlab-note"), cell.locator("select").first
    kernel = psutil.Process(int(screen.python("__import__('os').getpid()")))
    expect(note).to_be_hidden()
    flow.focus()
    kernel.suspend()
    try:
        screen.page.keyboard.press("ArrowDown")
        expect(flow).to_be_focused()
        expect(note).to_contain_text("The kernel has not answered yet")
    finally:
        kernel.resume()
    expect(note).to_be_hidden()
    assert screen.errors == []


def test_after_a_restart_each_widget_says_that_its_kernel_is_gone(screen):
    """The last of these tests: it restarts the kernel."""
    screen.restart()
    for name in ALL:
        note = screen.scroll_to(_first_line(name)).locator(".bttlab-note").first
        expect(note).to_be_visible()
        expect(note).to_contain_text("The kernel was restarted or has stopped")
