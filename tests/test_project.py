"""The parts of the project that must agree with each other."""

import re
import subprocess
from functools import cache
from importlib import metadata

import pytest
from packaging.requirements import Requirement

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

from conftest import ROOT

PYTHONS = ("3.10", "3.11", "3.12")


@cache
def _pyproject() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def _pins(*extras: str) -> list[str]:
    project = _pyproject()["project"]
    return [
        pin for group in (project["dependencies"], *map(project["optional-dependencies"].get, extras)) for pin in group
    ]


def _of(python: str, pins: list[str]) -> set[str]:
    """The pins that hold for a Python, as NAME==VERSION with names as they are in locks."""
    parsed = [Requirement(pin) for pin in pins]
    marker = {"python_version": python, "python_full_version": f"{python}.1", "extra": ""}
    return {f"{re.sub('_', '-', r.name)}{r.specifier}" for r in parsed if not r.marker or r.marker.evaluate(marker)}


def test_environment_has_the_pins_of_pyproject():
    text = (ROOT / "environment.yml").read_text(encoding="utf-8")
    listed = re.findall(r"^ *- (\S+==.+)$", text, re.MULTILINE)
    assert sorted(listed) == sorted(_pins("lab", "methods"))
    assert listed[0].startswith("torch=="), "torch comes first, so that nothing pulls another build"
    assert f"- python{_pyproject()['project']['requires-python'].replace(' ', '')}\n" in text


def test_every_dependency_is_pinned_once_for_each_python():
    every = _pins(*_pyproject()["project"]["optional-dependencies"])
    assert every and all(re.fullmatch(r"[\w.-]+==[\w.]+(; python_version (<|>=) '3\.\d+')?", pin) for pin in every)
    for python in PYTHONS:
        names = [pin.split("==")[0] for pin in _of(python, every)]
        assert len(names) == len(set(names))
        assert {Requirement(pin).name for pin in every} - {"tomli"} <= {
            re.sub("^opt-", "opt_", name) for name in names
        } | {"tomli"}


def test_the_pythons_are_those_that_the_interpreter_is_looked_for_in():
    wanted = _pyproject()["project"]["requires-python"]
    assert (
        wanted == ">=3.10,<3.13"
        and f"{{2:-{' '.join(reversed(PYTHONS))}}}" in (ROOT / "tools" / "find_python").read_text()
    )


@pytest.mark.parametrize("python", PYTHONS)
def test_the_lock_has_the_pins_and_a_hash_of_everything(python):
    extras = re.search(r"^EXTRAS := (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)[1].split()
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    packages = re.findall(r"^([^\s#].*?)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", text, re.MULTILINE)
    assert len(packages) == len(re.findall(r"^[^\s#]", text, re.MULTILINE))
    locked = _of(python, [name for name, _ in packages])
    assert {pin for pin in _of(python, _pins(*extras)) if not pin.startswith("torch==")} <= locked, "run: make lock"
    assert len({pin.split("==")[0] for pin in locked}) == len(locked)
    assert not any(name.startswith(("torch==", "nvidia", "cuda")) for name in locked)
    assert "://" not in text  # it says nothing of the index it was made with


def test_the_lock_was_made_with_what_torch_requires():
    (torch,) = _pyproject()["tool"]["uv"]["dependency-metadata"]
    assert f"torch=={torch['version']}" in _pins()
    installed = map(Requirement, metadata.requires("torch"))
    cuda = re.compile(r"cuda|nvidia|triton")
    wanted = {f"{r.name}{r.specifier}" for r in installed if "extra" not in str(r.marker) and not cuda.match(r.name)}
    assert set(torch["requires-dist"]) == wanted


def test_continuous_integration_runs_the_readme_test_command():
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "make test" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_no_real_corpus_is_committed():
    files = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert not [f for f in files if re.match(r"data/(atis|snips)/", f)]
