"""The methods lab by keyboard alone: a method found, trained, paused, stopped; a technique of the survey."""

import re

import pytest
from lab_page import LabPage
from playwright.sync_api import expect
from test_every_screen import SETUP

pytestmark = pytest.mark.long

CELL = "methods = lab.MethodsLab(workload, samples=10_000)\nmethods"
FOCUSED = "() => document.activeElement.innerText.trim()"
TEXT = (
    "document.activeElement.getAttribute('aria-label') ?? document.activeElement.closest('.jupyter-widgets')?.innerText"
)


@pytest.fixture(scope="module")
def lab(open_cells) -> LabPage:
    made = open_cells("methods", SETUP, CELL)
    made.scroll_to("methods = lab.MethodsLab")
    return made


def tab_to(lab: LabPage, name: str) -> None:
    """Press the tabulator until a control of this name has the focus."""
    for _ in range(150):
        lab.page.keyboard.press("Tab")
        if (lab.page.evaluate(f"() => {TEXT}") or "").strip().startswith(name):
            return
    raise AssertionError(f"the tabulator does not reach {name}")


def has_focus(lab: LabPage, name: str) -> None:
    lab.until(lambda: lab.page.evaluate(FOCUSED) == name)


def states(lab: LabPage) -> str:
    return lab.python("[(run.name, run.state) for run in methods.dashboard.runs]")


def test_a_method_is_found_trained_paused_continued_stopped_and_cleared(lab):
    page, keys = lab.page, lab.page.keyboard
    page.get_by_placeholder("a name, a family, or a word").focus()
    keys.type("interpolated momentum")
    lab.until(lambda: lab.cell_with("methods = ").locator("input[type=checkbox]:visible").count() == 2)
    tab_to(lab, "lion")
    keys.press("Space")
    lab.until(lambda: lab.python("methods._text.value") == "lion")
    tab_to(lab, "Train")
    keys.press("Enter")
    lab.wait_for_text("running")
    lab.until(lambda: lab.python("methods.dashboard.runs[0].count > 0") == "True")
    has_focus(lab, "Train")
    tab_to(lab, "Pause")
    keys.press("Enter")
    lab.wait_for_text("paused")
    has_focus(lab, "Continue")  # not a slider, whose value the next key would change
    keys.press("Enter")
    lab.wait_for_text("running")
    has_focus(lab, "Pause")
    tab_to(lab, "Stop")
    keys.press("Enter")
    lab.wait_for_text("stopped")
    has_focus(lab, "Clear")
    assert states(lab) == "[('lion', 'stopped')]"
    keys.press("Enter")
    lab.until(lambda: states(lab) == "[]")
    expect(lab.button("Clear")).to_be_disabled()
    lab.until(lambda: lab.page.evaluate("document.activeElement.closest('.bttlab-widget') !== null"))
    assert lab.errors == []


def test_a_technique_of_the_survey_trains_beside_dense_and_tensor(lab):
    page, keys = lab.page, lab.page.keyboard
    page.get_by_placeholder("a name, a family, or a word").focus()
    keys.press("Control+A")
    keys.press("Delete")
    lab.page.locator(".widget-dropdown select").first.focus()
    keys.type("SkipI")
    lab.until(lambda: lab.python("(methods._text.value, methods._beside.value)") == "('skipinit', True)")
    tab_to(lab, "samples")
    keys.press("Home")
    lab.until(lambda: lab.python("methods.dashboard.samples") == "100")
    page.get_by_placeholder("a name, a family, or a word").focus()
    tab_to(lab, "Train")
    keys.press("Enter")
    finished = [(name, "finished") for name in ("dense", "tensor", "skipinit")]
    lab.until(lambda: states(lab) == str(finished))
    picture = lab.cell_with("methods = ").locator("img.bttlab-figure:visible").last
    rows = "dense 100 samples, tensor 100 samples, skipinit 100 samples"  # lion was stopped in the test before
    lab.until(lambda: re.search(rf"rows: lion \d+ samples, {rows}", picture.get_attribute("alt")))
    assert lab.errors == []
