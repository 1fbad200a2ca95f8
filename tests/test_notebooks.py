"""Every notebook runs from top to bottom, and is committed without what running it leaves behind."""

import ast
import base64
import os
import re
from pathlib import Path

import nbclient
import nbformat
import pytest
from jupyter_client.manager import KernelManager

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
SECONDS = 600  # for a cell, on a busy machine
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:home|Users|root|tmp|work|opt|mnt)/|[A-Z]:\\")

every_notebook = pytest.mark.parametrize(
    "path",
    [pytest.param(NOTEBOOKS[0], marks=pytest.mark.every_python), *NOTEBOOKS[1:]],
    ids=lambda path: path.stem,
)


def test_notebook_00_shows_the_picture_of_its_first_minute_before_it_runs():
    first = nbformat.read(FOLDER / "00_start_here.ipynb", as_version=4).cells[0]
    picture = base64.b64decode(first.attachments["first_minute.png"]["image/png"])
    assert picture == (FOLDER.parent / "docs" / "images" / "first_minute.png").read_bytes()
    assert "(attachment:first_minute.png)" in first.source


def _code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.fixture(scope="module")
def kernel(tiny_airline):
    """One for all notebooks: to start it and to import takes as long as many a notebook."""
    manager = KernelManager(kernel_name="python3")
    settings = {"BTTLAB_QUICK": "1", "BTTLAB_DATA": str(tiny_airline.parent)}
    manager.start_kernel(cwd=str(FOLDER), env=os.environ | settings)
    yield manager
    manager.shutdown_kernel()


@pytest.mark.long
@every_notebook
def test_runs_in_quick_mode(path, kernel):
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell("%reset_selective -f ."))
    nbclient.NotebookClient(notebook, km=kernel, timeout=SECONDS).execute()
    for cell in _code_cells(notebook):
        text = "".join(output.get("text", "") for output in cell.outputs)  # a print may come in two pieces
        assert "Traceback" not in text
        if "\ncheck(" in cell.source:  # the solutions are in place
            assert re.match("Right. .{10}", cell.outputs[-1].data["text/plain"]), cell.outputs[-1]


@pytest.mark.long
def test_card_and_pytorch_begin_alike_in_notebook_08_whichever_cells_run_again(kernel):
    """A cell that trains on from where it ended would show two curves where the compiler made no error."""
    notebook = nbformat.read(FOLDER / "08_your_own_model.ipynb", as_version=4)
    cells = {cell.id: cell for cell in notebook.cells}
    order = ["01", "03", "04", "06", "08", "09", "10", "09", "10", "08", "10"]
    notebook.cells = [nbformat.v4.new_code_cell(cells[f"own-{number}"].source) for number in order]
    nbclient.NotebookClient(notebook, km=kernel, timeout=SECONDS).execute()
    texts = ["".join(output.get("text", "") for output in cell.outputs) for cell in notebook.cells]
    differences = [float(found[1]) for text in texts if (found := re.search("difference of a loss: (.+)", text))]
    assert len(differences) == 3 and max(differences) < 1e-4


@every_notebook
def test_is_committed_clean(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    assert "widgets" not in notebook.metadata
    for cell in _code_cells(notebook):
        assert cell.outputs == [] and cell.execution_count is None, cell.source
    for cell in notebook.cells:
        assert not MACHINE_PATH.search(cell.source), cell.source


@every_notebook
def test_an_imported_name_means_one_thing(path):
    """A cell far above is run again, or counts on what it imported: a later import is not to change what it does."""
    places = {}
    for cell in _code_cells(nbformat.read(path, as_version=4)):
        source = re.sub(r"(?m)^%.*$", "", cell.source)
        for node in ast.walk(ast.parse(source)):
            for alias in node.names if isinstance(node, ast.ImportFrom) else ():
                places.setdefault(alias.asname or alias.name, set()).add(f"{node.module}.{alias.name}")
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


@every_notebook
def test_links_lead_somewhere(path):
    notebook = nbformat.read(path, as_version=4)
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    for target in re.findall(r"\]\(([^)#]+)\)", prose):
        if target.startswith("attachment:"):
            assert any(target.partition(":")[2] in cell.get("attachments", {}) for cell in notebook.cells), target
        elif target.startswith("../build/site/html/"):  # `make site` makes it
            assert target == f"../build/site/html/notebooks/{path.stem}.html"
        elif "://" not in target:
            assert (FOLDER / target).exists(), target
    following = NOTEBOOKS[(NOTEBOOKS.index(path) + 1) % len(NOTEBOOKS)]
    assert prose.endswith(f"]({following.name})"), "the last link is that to the next notebook"
