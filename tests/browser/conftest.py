"""A real JupyterLab on this machine, and a browser in front of it."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import pytest
from lab_page import SIZE, TOKEN, LabPage, served

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def lab_folder(tmp_path_factory) -> Path:
    """JupyterLab's folder, with copies of the notebooks: running them must not change ours."""
    folder = tmp_path_factory.mktemp("lab")
    shutil.copytree(ROOT / "notebooks", folder / "notebooks", ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    return folder


@pytest.fixture(scope="session")
def lab_corpora(short_airline) -> dict[str, str]:
    """Environment that names the corpora of JupyterLab: to score all of dev takes longer than a test trains."""
    return {"BTTLAB_DATA": str(short_airline.parent)}


@pytest.fixture(scope="session")
def lab_url(lab_folder, lab_corpora) -> Iterator[str]:
    """The address of JupyterLab."""
    with served(lab_folder, lab_corpora, "lab") as url:
        yield url


@pytest.fixture(scope="module")
def open_notebook(lab_url, browser) -> Iterator[Callable[[str], LabPage]]:
    """Opens a notebook by name in a page of its own; closes pages and shuts kernels down in the end."""
    pages = []
    with browser.new_context(viewport=SIZE) as context:  # what one page has fetched, the next one need not

        def opened(name: str) -> LabPage:
            pages.append(LabPage(context, lab_url, TOKEN, name))
            return pages[-1]

        yield opened
        for page in pages:
            page.close()


@pytest.fixture(scope="module")
def open_cells(lab_folder, open_notebook):
    """Opens a notebook of cells that are given, for a module, and runs all of them."""

    def opened(name: str, *cells: str) -> LabPage:
        metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
        notebook = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(cell) for cell in cells], metadata=metadata
        )
        nbformat.write(notebook, lab_folder / "notebooks" / f"{name}.ipynb")
        lab = open_notebook(name)
        lab.run_all()
        assert lab.errors == []
        return lab

    return opened
