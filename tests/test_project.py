"""The parts of the project that must agree with each other."""

import re
import subprocess
import tomllib

from conftest import ROOT


def _pins(names: list[str]) -> set[str]:
    return {name for name in names if "==" in name}


def test_environment_has_the_pins_of_pyproject():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = _pins(project["dependencies"] + extras["lab"] + extras["methods"])
    listed = re.findall(r"^ *- (\S+==\S+)$", (ROOT / "environment.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(listed) == wanted
    assert listed[0].startswith("torch=="), "torch comes first, so that nothing pulls another build"


def test_every_dependency_is_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    every = [name for group in (project["dependencies"], *project["optional-dependencies"].values()) for name in group]
    assert every and all(re.fullmatch(r"[\w.-]+==[\w.]+", name) for name in every)


def test_the_lock_has_the_pins_and_a_hash_of_everything():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = re.search(r"^EXTRAS := (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)[1].split()
    groups = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in extras)]
    wanted = [pin for group in groups for pin in group]
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    packages = re.findall(r"^(\S+==\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", text, re.MULTILINE)
    locked = {name for name, _ in packages}
    assert len(packages) == len(re.findall(r"^[^\s#]", text, re.MULTILINE))
    assert {re.sub("_", "-", pin) for pin in wanted if not pin.startswith("torch==")} <= locked, "run: make lock"
    assert not any(name.startswith(("torch==", "nvidia")) for name in locked)
    assert "://" not in text  # it says nothing of the index it was made with


def test_continuous_integration_runs_the_readme_test_command():
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "make test" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_no_real_corpus_is_committed():
    files = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert not [f for f in files if re.match(r"data/(atis|snips)/", f)]
