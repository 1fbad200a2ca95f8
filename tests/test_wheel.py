"""The wheel, installed in an environment of its own and used in an empty folder, where there is no checkout."""

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from conftest import ROOT

pytestmark = pytest.mark.long

BESIDE = ("bttlab_cost", "bttlab_hardware", "bttlab_methods")
FOLDERS = ("data", "docs", "hls_src", "notebooks", "overlays")
MOST_BYTES = 4_000_000


@pytest.fixture(scope="module")
def wheels(tmp_path_factory) -> dict[str, Path]:
    """The wheels by package, built of source archives as for a release.

    The archives are of what git knows of here, and of a corpus and a module that are not to be in them.
    """
    source, made = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in _known_to_git("."):
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    private = source / "data" / "private" / "train" / "seq.in"
    left_over = source / "build" / "lib" / "bttlab" / "left_over.py"
    for stranger in (private, left_over):
        stranger.parent.mkdir(parents=True)
        stranger.write_text("")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    archive = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    for package in (source, *(source / "lib" / name for name in BESIDE)):
        subprocess.run([sys.executable, "-c", archive, str(made)], cwd=package, stdout=subprocess.DEVNULL, check=True)
    for path in made.glob("*.tar.gz"):
        with tarfile.open(path) as files:
            assert not [name for name in files.getnames() if "private" in name or "left_over" in name]
    subprocess.run([*command, "--wheel-dir", str(made), *map(str, made.glob("*.tar.gz"))], check=True)
    return {path.name.split("-")[0]: path for path in made.glob("*-py3-none-any.whl")}


@pytest.fixture(scope="module")
def installed(wheels, tmp_path_factory) -> Path:
    """An environment with the wheels, and with this one's packages but for its bttlab."""
    folder = tmp_path_factory.mktemp("environment") / "venv"
    venv.create(folder, symlinks=True)
    python = str(folder / "bin" / "python")
    command = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*command, *map(str, wheels.values())], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    others = Path(sysconfig.get_path("purelib"))
    setuptools = (others / "distutils-precedence.pth").read_text()  # distutils, where Python has none
    (packages / "others.pth").write_text(f"{others}\n{setuptools}\n")
    return folder / "bin"


def _known_to_git(*places: str) -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *places]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [name for name in names if (ROOT / name).is_file()]


def _run(command: list[str | Path], folder: Path, **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("BTTLAB", "PYTHON"))}
    environment |= {"XDG_CACHE_HOME": str(folder / "cache"), **variables}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_wheel_has_the_folders_and_nothing_else(wheels):
    wheel = wheels["bttlab"]
    assert wheel.stat().st_size < MOST_BYTES
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.startswith("bttlab-")}
        assert all(
            archive.read(f"bttlab/share/{name}") == (ROOT / name).read_bytes() for name in _known_to_git(*FOLDERS)
        )
    assert names == _modules("bttlab") | {f"bttlab/share/{name}" for name in _known_to_git(*FOLDERS)}
    for package in BESIDE:
        with zipfile.ZipFile(wheels[package]) as archive:
            assert {name for name in archive.namelist() if not name.startswith(f"{package}-")} == _modules(package)
            assert any(name.endswith("licenses/LICENSE") for name in archive.namelist())


def _modules(package: str) -> set[str]:
    projects = ("README.md", "pyproject.toml", "VERSION", "LICENSE")
    names = [name for name in _known_to_git(f"lib/{package}") if "/tests/" not in name]
    return {name.removeprefix("lib/") for name in names if not name.endswith(projects)}


def test_doctor_and_training_need_no_checkout(installed, tmp_path):
    share = next(installed.parent.glob("lib/python*/site-packages/bttlab/share"))
    checks = {
        check["name"]: check
        for check in json.loads(_run([installed / "bttlab", "doctor", "--json"], tmp_path))["checks"]
    }
    assert {checks[name]["status"] for name in ("packages", "overlays", "corpus airline")} == {"ok"}
    assert checks["overlays"]["data"]["folder"] == str(share / "overlays") and "overlay sources" not in checks
    assert checks["corpus airline"]["data"]["folder"] == str(share / "data" / "airline")
    train = ["train", "--samples", "8", "--device", "emulated", "--out", "run", "--json"]
    _run([installed / "bttlab", *train], tmp_path)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["git"] is None
    assert not (tmp_path / "cache" / "bttlab" / "data").exists()  # no corpus had to be made


def test_the_packages_beside_add_a_command_and_a_notebook(installed, tmp_path):
    assert "galore" in _run([installed / "bttlab", "methods", "list"], tmp_path)
    (share,) = installed.parent.glob("lib/python*/site-packages/bttlab/share")
    code = (
        "import sys, nbclient, nbformat; notebook = nbformat.read(sys.argv[1], 4); del notebook.cells[8:]; "
        "nbclient.NotebookClient(notebook, timeout=600, kernel_name='python3').execute(); "
        "print(notebook.cells)"
    )
    notebook = share / "notebooks" / "07_what_would_it_cost.ipynb"
    shown = _run([installed / "python", "-W", "ignore", "-c", code, notebook], tmp_path, BTTLAB_QUICK="1")
    assert "execute_result" in shown and str(ROOT) not in shown
