"""The parts of the project that must agree with each other."""

import re
import subprocess
from functools import cache
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import bttlab

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib


from conftest import LONGEST, ROOT

PYTHONS = ("3.10", "3.11", "3.12")


PROJECTS = ("pyproject.toml", *(f"lib/bttlab_{name}/pyproject.toml" for name in ("cost", "hardware", "methods")))


@cache
def _project(path: str = "pyproject.toml") -> dict:
    return tomllib.loads((ROOT / path).read_text(encoding="utf-8"))


def _requirements(path: str, extras: list[str]) -> list[Requirement]:
    project = _project(path)["project"]
    lists = [project["dependencies"], *(project.get("optional-dependencies", {}).get(extra, ()) for extra in extras)]
    return [Requirement(line) for lines in lists for line in lines if not line.startswith("bttlab")]


def _locked(python: str) -> dict[str, str]:
    """Versions that the lock has for a Python, by package."""
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    packages = re.findall(r"^([^\s#].*?)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", text, re.MULTILINE)
    assert len(packages) == len(re.findall(r"^[^\s#]", text, re.MULTILINE)), "a package has no hash"
    marker = {"python_version": python, "python_full_version": f"{python}.1", "extra": ""}
    parsed = [Requirement(name) for name, _ in packages]
    here = [one for one in parsed if not one.marker or one.marker.evaluate(marker)]
    assert len({one.name for one in here}) == len(here), "two versions for one Python"
    return {canonicalize_name(one.name): str(one.specifier).removeprefix("==") for one in here}


def test_all_packages_have_one_version():
    projects = [_project(path)["project"] for path in PROJECTS]
    assert {project["version"] for project in projects} == {bttlab.__version__}
    for project in projects[1:]:
        assert f"bttlab[lab]=={bttlab.__version__}" in project["dependencies"]


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("path", PROJECTS)
def test_the_lock_has_a_version_in_every_range(path, python):
    extras = re.search(r"^EXTRAS := (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)[1].split()
    locked = _locked(python) | {"torch": _pinned_torch()}
    for one in _requirements(path, extras):
        if not one.marker or one.marker.evaluate({"python_version": python}):
            assert one.specifier.contains(locked[canonicalize_name(one.name)]), f"{one}: run make lock"


def test_the_lock_has_neither_torch_nor_an_index():
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert not re.search(r"^(torch|nvidia|cuda)[\w-]*==", text, re.MULTILINE) and "://" not in text


def _pinned_torch() -> str:
    (pin,) = _project()["tool"]["uv"]["constraint-dependencies"]
    return pin.removeprefix("torch==")


def test_every_place_pins_the_same_torch():
    (torch,) = _project()["tool"]["uv"]["dependency-metadata"]
    conda = (ROOT / "environment.yml").read_text(encoding="utf-8")
    assert torch["version"] == _pinned_torch() and f"- torch=={_pinned_torch()}\n" in conda


def test_the_lock_was_made_with_what_torch_requires():
    (torch,) = _project()["tool"]["uv"]["dependency-metadata"]
    if metadata.version("torch").partition("+")[0] != _pinned_torch():
        pytest.skip(f"torch {metadata.version('torch')} is here, not {_pinned_torch()}: the lock says nothing of it")
    installed = map(Requirement, metadata.requires("torch"))
    cuda = re.compile(r"cuda|nvidia|triton")
    wanted = {f"{r.name}{r.specifier}" for r in installed if "extra" not in str(r.marker) and not cuda.match(r.name)}
    assert set(torch["requires-dist"]) == wanted


def test_the_files_that_start_first_are_there():
    """One that was renamed would start last, and all workers would wait for it."""
    files = {path.stem for folder in ("tests", "lib") for path in (ROOT / folder).rglob("test_*.py")}
    assert set(LONGEST) <= files


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no checkout")
def test_no_real_corpus_is_committed():
    files = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert not [f for f in files if re.match(r"data/(atis|snips)/", f)]
