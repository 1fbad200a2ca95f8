"""Dockerfile and .devcontainer agree with the rest of the project, as far as that shows without a container engine."""

import json
import re
import shlex

import pytest
from packaging.specifiers import SpecifierSet

from conftest import ROOT

pytestmark = pytest.mark.long

DOCKERFILE = re.sub(r"\\\n *", " ", (ROOT / "Dockerfile").read_text(encoding="utf-8"))
HOSTS = re.sub(r"\\\n *", " ", (ROOT / "docs" / "hosts.md").read_text(encoding="utf-8"))


def _instructions(name: str, text: str = DOCKERFILE) -> list[str]:
    return re.findall(rf"^{name} (.*)$", text, re.MULTILINE)


def _jupyter(command: str) -> dict[str, str]:
    options = re.search(r"jupyter lab (.*)", command)[1]
    return dict(option.lstrip("-").partition("=")[::2] for option in shlex.split(options) if option.startswith("--"))


def test_python_is_one_that_the_project_runs_on():
    wanted = re.search(r'requires-python = "([^"]*)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))[1]
    (base,) = _instructions("ARG")
    assert SpecifierSet(wanted).contains(re.search(r"python:(3\.\d+)-", base)[1])
    assert {line.split()[0] for line in _instructions("FROM")} == {"${BASE}", "base"}


def test_it_runs_as_a_user_who_may_not_change_it():
    last = DOCKERFILE[DOCKERFILE.rindex("\nFROM ") :]
    assert _instructions("USER", last) == ["lab"] and "useradd --create-home --uid 1000 lab" in DOCKERFILE
    assert "chown" not in DOCKERFILE and last.index("COPY --from=build") < last.index("USER lab")
    # an environment cannot be moved: it is made at the path that it has in the end
    (workdir,) = _instructions("WORKDIR", DOCKERFILE[: DOCKERFILE.rindex("\nFROM ")])
    assert f"COPY --from=build {workdir} {workdir}\n" in last and f"PATH={workdir}/.venv/bin:" in last


def test_the_server_asks_for_a_token_and_is_published_on_loopback():
    (command,) = _instructions("CMD")
    options = _jupyter(json.loads(command)[-1])
    recipe = re.search(r"^\t.*jupyter lab .*$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)[0]
    own = _jupyter(recipe.replace("$(PORT)", "8888").replace("$(CURDIR)", "/home/lab"))
    assert options == {
        **own,
        "ServerApp.ip": "0.0.0.0",
        "no-browser": "",
    }
    assert own["ServerApp.ip"] == "127.0.0.1" and _instructions("EXPOSE") == [own["ServerApp.port"]]
    published = re.findall(r"--publish (\S+)", HOSTS)
    assert published == ["127.0.0.1:8888:8888"] and {"--read-only", "--cap-drop", "--device"} <= set(HOSTS.split())


def test_nothing_private_gets_into_the_image():
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert {".git", ".venv*", "data/atis", "data/snips", "runs"} <= set(ignored)


def test_the_development_container_is_a_stage_of_it():
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8"))
    folder = ROOT / ".devcontainer"
    assert (folder / container["build"]["dockerfile"]).resolve() == ROOT / "Dockerfile"
    assert (folder / container["build"]["context"]).resolve() == ROOT
    stages = re.findall(r" AS (\w+)$", DOCKERFILE, re.MULTILINE)
    assert container["build"]["target"] in stages and container["remoteUser"] in DOCKERFILE
    assert "environment:" in (ROOT / "Makefile").read_text(encoding="utf-8")
    assert container["postCreateCommand"].startswith("make environment") and container["forwardPorts"] == [8888]
