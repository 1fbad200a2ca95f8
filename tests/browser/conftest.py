"""A real JupyterLab on this machine, and a browser in front of it."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import pytest
from lab_page import SETTINGS, SIZE, LabPage, wait_for_page

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "a-token-for-the-test"


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
    folder = lab_folder
    settings = folder / "settings"
    for name, text in SETTINGS.items():
        file = settings / "@jupyterlab" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "jupyter", "lab", "--no-browser", "--allow-root", f"--ServerApp.root_dir={folder}"]
    command += [f"--ServerApp.port={port}", "--ServerApp.ip=127.0.0.1", f"--IdentityProvider.token={TOKEN}"]
    command += [f"--LabApp.user_settings_dir={settings}", f"--LabApp.workspaces_dir={folder / 'workspaces'}"]
    environment = os.environ | lab_corpora | {"JUPYTER_CONFIG_DIR": str(folder / "config")}
    environment["BTTLAB_EMULATED_CARDS"] = "1"
    environment["JUPYTER_CONFIG_PATH"] = str(ROOT / "tools" / "jupyter")  # as `make lab` has it
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "lib"), str(ROOT / "tests" / "helpers")])
    with open(folder / "jupyter.log", "w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        try:
            wait_for_page(f"http://127.0.0.1:{port}/api?token={TOKEN}", server, folder / "jupyter.log")
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait(30)


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
