"""The site: stills of widgets, formulas, links that lead somewhere, and the page of recorded runs."""

import json
import re
import sys
from html import unescape

import nbformat
import pytest

from conftest import ROOT

sys.path.append(str(ROOT / "site"))

import build
from links import broken_links
from recorded import recorded_runs
from stills import STATE, VIEW, freeze


@pytest.fixture
def checkout(tmp_path):
    """A checkout with a README, a page and a notebook with a formula."""
    for folder in ("docs", "notebooks"):
        (tmp_path / folder).mkdir()
    (tmp_path / "README.md").write_text("# A lab\n\n[Energy](docs/energy.md), [start](notebooks/00_start.ipynb)\n")
    (tmp_path / "docs" / "energy.md").write_text("# Energy\n\n## Meters\n\n[home](../README.md), [folder](../docs)\n")
    formula = nbformat.v4.new_markdown_cell(
        "# Start\n\nA guess costs $\\ln 22 \\approx 3.1$.\n\n$$p \\leftarrow p - \\eta\\, g$$"
    )
    nbformat.write(nbformat.v4.new_notebook(cells=[formula]), tmp_path / "notebooks" / "00_start.ipynb")
    return tmp_path


def make(checkout, more: str):
    """Make the site of a checkout with a line more in its README."""
    with (checkout / "README.md").open("a") as file:
        file.write(f"\n{more}\n")
    build.lay_out(checkout, checkout / "notebooks", checkout / "build" / "source")
    build.make_pages(checkout / "build" / "source", checkout / "build" / "html")


@pytest.mark.long
def test_pages_with_search_formulas_and_nothing_from_a_network(checkout):
    """And a link that leads nowhere, which they are made with, and refused for."""
    with pytest.raises(build.SiteError, match=r"#none leads nowhere$"):
        make(checkout, '<a href="docs/energy.html#none">x</a>')
    pages = checkout / "build" / "html"
    home, notebook = (pages / "index.html").read_text(), (pages / "notebooks" / "00_start.html").read_text()
    assert 'href="docs/energy.html"' in home and (pages / "search.html").is_file()
    assert "<math" in notebook and "\\ln" not in notebook
    for page in pages.rglob("*.html"):
        assert not [line for line in page.read_text().splitlines() if "<script" in line and "//" in line], page


@pytest.fixture(scope="module")
def our_pages(tmp_path_factory):
    """All docs and notebooks, as they are committed, and the API pages."""
    folder = tmp_path_factory.mktemp("site")
    build.lay_out(ROOT, ROOT / "notebooks", folder / "source", build.API)
    build.make_pages(folder / "source", folder / "html")
    return folder / "html"


@pytest.mark.long
def test_links_of_our_pages(our_pages):
    assert broken_links(our_pages) == []
    for page in (our_pages / "notebooks").glob("*.html"):
        assert "build/site" not in page.read_text()  # the link to a notebook's page, which this is


@pytest.mark.long
def test_api_pages_have_sections_and_signatures_that_people_read(our_pages):
    text = {page: re.sub("<[^>]+>", "", (our_pages / "api" / f"{page}.html").read_text()) for page in build.API}
    for page, words in text.items():
        said = unescape(words)
        for wrong in (
            "Alias for field number",
            "pydantic",
            "<factory>",
            "<lambda>",
            "~",
            "Variables",
            "Type:",
            "Define the",
        ):
            assert wrong not in said, page
    baseline = unescape(text["bttlab.baseline"])
    assert re.search(r"class Energy\(steps, per_step, per_step_over_idle\)", baseline)
    for field in (
        "lower_quartile (Quantity)",
        "mean (Quantity)",
        "losses (list of float)",
        "step_seconds (list of float)",
    ):
        assert field in baseline  # each of several with one description
    assert "Attributes" in baseline and "config (ModelConfig or ModuleModel)" in baseline
    assert (
        'href="bttlab.model.html#bttlab.model.ModelConfig"' in (our_pages / "api" / "bttlab.baseline.html").read_text()
    )
    assert "Bytes counted so far: of buffers" in unescape(text["bttlab.card"])  # a property's line with a colon


@pytest.mark.long
@pytest.mark.parametrize("quick", [True, False])
def test_a_quick_page_says_that_it_was_made_with_few_samples(checkout, tmp_path, quick):
    source, target = checkout / "notebooks" / "00_start.ipynb", tmp_path / "executed.ipynb"
    build.execute(source, target, quick)
    texts = [cell.source for cell in nbformat.read(target, as_version=4).cells]
    assert texts[0].startswith("# Start") and ("few samples" in "".join(texts)) == quick


# --- stills


def widget(kind: str, **state) -> dict:
    return {"model_name": f"{kind}Model", "state": state}


def notebook_with(states: dict, *more: dict):
    """A notebook whose one cell shows the widget "top"."""
    shown = nbformat.v4.new_output("display_data", {VIEW: {"model_id": "top"}, "text/plain": "VBox(...)"})
    others = [nbformat.v4.new_output("display_data", data) for data in more]
    cell = nbformat.v4.new_code_cell("board", outputs=[shown, *others])
    return nbformat.v4.new_notebook(cells=[cell], metadata={"widgets": {STATE: {"state": states}}})


def test_a_still_says_how_widgets_stood():
    rate = widget("FloatLogSlider", description="rate", value=0.004, min=-4, max=-1, base=10, layout="IPY_MODEL_plain")
    states = {
        "top": widget(
            "VBox", children=["IPY_MODEL_rate", "IPY_MODEL_flow", "IPY_MODEL_line", "IPY_MODEL_hidden", "IPY_MODEL_box"]
        ),
        "box": widget("Box", children=["IPY_MODEL_next"]),
        "next": widget("Button", description="", tooltip="next"),
        "rate": rate,
        "flow": widget("Dropdown", description="flow", _options_labels=["a<b", "right to left"], index=0),
        "line": widget("HTML", value="<b>running</b>"),
        "hidden": widget("Button", description="Secret", layout="IPY_MODEL_none"),
        "plain": widget("Layout"),
        "none": widget("Layout", display="none"),
    }
    notebook = notebook_with(states)
    freeze(notebook)
    ((_, html),) = notebook.cells[0].outputs[0].data.items()
    for part in (
        '<div class="row"><span class="button">next</span></div>',
        'rate <meter min="-4" max="-1" value="-2.39794">',
        "a&lt;b",
        "<b>running</b>",
    ):
        assert part in html
    assert "Secret" not in html and "widgets" not in notebook.metadata


def test_a_notebook_is_executed_again_only_if_it_has_changed_since(tmp_path, monkeypatch):
    source, kept = tmp_path / "notebooks" / "a.ipynb", tmp_path / "build" / "executed" / "a.ipynb"
    source.parent.mkdir()
    executed = []
    cells = [nbformat.v4.new_markdown_cell("# A"), nbformat.v4.new_code_cell("1 + 1\n2")]
    quick = [cells[0], nbformat.v4.new_markdown_cell(build.QUICK), cells[1]]
    monkeypatch.setattr(build, "ROOT", tmp_path)
    monkeypatch.setattr(build, "BUILD", tmp_path / "build")
    monkeypatch.setattr(build, "execute", lambda source, target, quick: executed.append(source.name))
    for name in ("lay_out", "make_pages"):
        monkeypatch.setattr(build, name, lambda *arguments: None)
    monkeypatch.setattr(sys, "argv", ["build.py", "--kept"])
    nbformat.write(nbformat.v4.new_notebook(cells=cells), source)

    def times() -> int:
        executed.clear()
        assert build.main() == 0
        return len(executed)

    assert times() == 1
    kept.parent.mkdir(parents=True)
    for of_kept in (cells, quick):
        nbformat.write(nbformat.v4.new_notebook(cells=of_kept), kept)
        assert times() == 0
    cells[1].source = "1 + 2\n2"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), source)
    assert times() == 1
    kept.write_text(kept.read_text()[:40])
    assert times() == 1


def test_a_kept_figure_goes_where_the_live_one_was():
    states = {"top": widget("VBox", children=["IPY_MODEL_live", "IPY_MODEL_line"])}
    states |= {"live": widget("HBox", children=["IPY_MODEL_canvas"], _dom_classes=["bttlab-live-1f"])}
    states |= {"canvas": widget("Image"), "line": widget("HTML", value="below")}
    states["canvas"]["buffers"] = [{"path": ["value"], "data": "live"}]
    kept = '<style></style><div class="bttlab-kept-1f"><img class="bttlab-figure" src="data:x"></div>'
    notebook = notebook_with(states, {"text/html": kept}, {"text/html": "something else"})
    freeze(notebook)
    first, second = (output.data["text/html"] for output in notebook.cells[0].outputs)
    assert (
        "base64,live" not in first
        and first.count("data:x") == 1
        and first.index("data:x") < first.index("below")
        and second == "something else"
    )


# --- recorded runs


def receipt(*parts: str) -> dict:
    return json.loads((ROOT / "data").joinpath(*parts).read_text())


def test_recorded_runs_are_the_records():
    """Compared with the files' own entries."""
    data = recorded_runs(ROOT)
    runs = {(run["encoders"], run["format"], run["setting"]): run for run in data["runs"]}
    assert len(runs) == len(data["runs"])
    sizes = {(size, kind) for size, kind, _ in runs}
    assert sizes == {(size, kind) for size in (2, 4, 6) for kind in ("dense", "tt", "btt")}
    graphs = "NVIDIA H100 80GB HBM3: CUDA graphs, batches of 16 samples, TF32"
    kept, run = receipt("baselines", "enc4-tt-cuda-batch16-tf32.json")["details"], runs[4, "tt", graphs]
    assert run["losses"] == pytest.approx(kept["modes"]["graphs"]["losses"], rel=1e-3)
    assert run["joules"]["value"] == kept["modes"]["graphs"]["energy"]["per_step"]["value"]
    assert run["memory"]["value"] == kept["memory"]["peak"]["value"] == sum(run["memory"]["parts"].values())
    card = runs[6, "btt", "emulated U50: 200 MHz, batches of 1 sample, FP32"]
    pages = receipt("receipts", "pages.json")["figures"]
    assert card["joules"]["high"] * 4478 == pytest.approx(pages["6-ENC, bidirectional.joules"]["high"])
    assert sum(card["seconds"]) * 44.78 == pytest.approx(pages["6-ENC, bidirectional.seconds"]["value"], rel=1e-3)
    assert card["memory"]["value"] == pages["6-ENC, bidirectional.bytes"]["value"]
    assert not any(key[1] == "dense" and run["kind"] == "card" for key, run in runs.items())
    for race in data["race"]:
        assert len(race["f1"]) == len(race["samples"]) == len(race["joules"]) and max(race["f1"]) >= 0.8


def test_each_recorded_figure_has_its_provenance():
    data, words = recorded_runs(ROOT), ("measured", "extrapolated", "modelled", "published")
    for run in data["runs"]:
        for figure in (run["joules"], run["memory"]):
            assert figure["how"] and (figure["by"] in words or figure["value"] is None)
        assert run["lossBy"] == "measured" and run["secondsBy"] == ("modelled" if run["kind"] == "card" else "measured")
        assert run["kind"] != "card" or run["joules"]["by"] == run["memory"]["by"] == "modelled"
    for race in data["race"]:
        assert race["secondsBy"] in words and (race["joulesBy"] in words) == (race["joules"][0] is not None)


def test_the_cards_recorded_losses_are_those_of_pytorch_on_a_gpu():
    losses = receipt("receipts", "card_losses.json")["details"]["losses"]
    assert len(losses) == 6
    for name, found in losses.items():
        size, kind = name.split("-ENC, ")
        of_gpu = receipt("baselines", f"enc{size}-{kind}-cuda.json")["details"]["modes"]["eager"]["losses"]
        assert found == pytest.approx(of_gpu, rel=1e-4) and len(found) == 100


@pytest.mark.long
def test_recorded_runs_by_keyboard(our_pages, browser):
    """Nothing is fetched but the page's files, which are small; axe-core finds nothing serious, light and dark."""
    from axe_playwright_python.sync_playwright import Axe

    files = ("recorded_runs.html", "recorded_runs_data.js", "_static/recorded_runs.js", "_static/site.css")
    assert sum((our_pages / file).stat().st_size for file in files) < 2_000_000
    for scheme, width in (("light", 1280), ("dark", 900)):
        context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
        page, asked, errors = context.new_page(), [], []
        page.on("request", lambda request, asked=asked: asked.append(request.url))
        page.on("pageerror", lambda error, errors=errors: errors.append(str(error)))
        page.goto((our_pages / "recorded_runs.html").as_uri())
        page.wait_for_selector("#race svg")
        assert errors == [] and not [url for url in asked if not url.startswith(("file:", "data:"))]
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        words = page.locator("#steps .live")
        assert words.text_content().startswith("2 encoders, tensor trains, bi-directional (BTT), after 50 samples: ")
        page.get_by_role("slider", name="encoders").focus()
        for key in ("End", "Tab", "End", "Tab"):  # 6 encoders, the last sample, the GPU
            page.keyboard.press(key)
        page.keyboard.press("Tab")
        page.keyboard.press("ArrowLeft")  # the format
        assert words.text_content().startswith("6 encoders, tensor trains, right to left (TT), after 100 samples: ")
        card = page.locator("#steps tbody tr").last.inner_text()
        wanted = receipt("receipts", "pages.json")["figures"]["6-ENC, right_to_left.joules"]["value"] / 44.78
        assert float(re.search(r"([\d.]+) J \(modelled", card)[1]) == pytest.approx(wanted, rel=0.01)
        assert "(measured)" in card and "MB (modelled)" in card
        for figure in page.locator(".recorded svg[role=img]").all():
            assert re.search(r"(measured|modelled)", figure.get_attribute("aria-label"))
        found = Axe().run(page, context=".recorded", options={"resultTypes": ["violations"]}).response["violations"]
        assert [rule for rule in found if rule["impact"] in ("serious", "critical")] == []
        context.close()
