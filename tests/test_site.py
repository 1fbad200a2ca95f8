"""The site: stills of widgets, formulas, and links that lead somewhere."""

import sys

import nbformat
import pytest

from conftest import ROOT

sys.path.append(str(ROOT / "site"))

import build
from links import broken_links
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


@pytest.mark.long
def test_links_of_our_pages(tmp_path):
    """All docs and notebooks, as they are committed."""
    build.lay_out(ROOT, ROOT / "notebooks", tmp_path / "source")
    build.make_pages(tmp_path / "source", tmp_path / "html")
    assert broken_links(tmp_path / "html") == []


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
