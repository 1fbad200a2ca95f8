"""The parts of the project that must agree with each other."""

import json
import os
import re
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import bttlab

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib


from conftest import ROOT

PYTHONS = ("3.10", "3.11", "3.12")


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECTS = ("pyproject.toml", *(f"lib/bttlab_{name}/pyproject.toml" for name in ("cost", "hardware", "methods")))


@cache
def _project(path: str = "pyproject.toml") -> dict:
    return tomllib.loads((ROOT / path).read_text(encoding="utf-8"))


def _requirements(path: str, extras: list[str]) -> list[Requirement]:
    project = _project(path)["project"]
    lists = [project["dependencies"], *(project.get("optional-dependencies", {}).get(extra, ()) for extra in extras)]
    return [Requirement(line) for lines in lists for line in lines if not line.startswith("bttlab")]


def _locked(python: str, lock: str = "requirements.lock") -> dict[str, str]:
    """Versions that a lock has for a Python, by package."""
    text = (ROOT / lock).read_text(encoding="utf-8")
    packages = re.findall(r"^([^\s#].*?)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", text, re.MULTILINE)
    assert len(packages) == len(re.findall(r"^[^\s#]", text, re.MULTILINE)), "a package has no hash"
    marker = {"python_version": python, "python_full_version": f"{python}.1", "extra": ""}
    parsed = [Requirement(name) for name, _ in packages]
    here = [one for one in parsed if not one.marker or one.marker.evaluate(marker)]
    assert len({one.name for one in here}) == len(here), "two versions for one Python"
    return {canonicalize_name(one.name): str(one.specifier).removeprefix("==") for one in here}


def test_all_packages_have_the_version_of_one_file():
    version = (ROOT / "VERSION").read_text(encoding="utf-8").strip()
    assert {metadata.version(f"bttlab{name}") for name in ("", "-cost", "-hardware", "-methods")} == {version}
    assert bttlab.__version__ == version, "run make environment"
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\n## {version}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    for path in PROJECTS:
        assert (
            "version" not in _project(path)["project"] and (ROOT / path).with_name("VERSION").resolve().parent == ROOT
        )
        assert _project(path)["tool"]["setuptools"]["dynamic"]["version"] == {"file": "VERSION"}
    for path in PROJECTS[1:]:
        (needed,) = (line for line in _project(path)["project"]["dependencies"] if line.startswith("bttlab"))
        assert Requirement(needed).specifier.contains(version)


def test_the_extras_that_users_install_are_in_the_docs():
    extras = set(_project("pyproject.toml")["project"]["optional-dependencies"]) - {"bench", "site", "sources", "test"}
    listed = (ROOT / "docs" / "hosts.md").read_text(encoding="utf-8").partition("[lab,class]`. There are")[2]
    assert set(re.findall(r"`(\w+)`(?! for)", listed.partition("\n\n")[0])) == extras


@pytest.mark.parametrize("python", [*PYTHONS, "3.13"])
def test_the_lock_for_pynq_4_has_a_version_in_every_range(python):
    """It has what differs from requirements.lock, and NumPy 2 where NumPy 1 has no wheel."""
    other = _locked(python, "requirements-pynq4.lock")
    locked = _locked(python) | other | {"torch": _pinned_torch()}
    assert other["pynq"] == "4.0.0" and other["numpy"].startswith("2." if python == "3.13" else "1.")
    assert ("grpcio" in other) == (python != "3.13")
    extras = ["train", "workbench", "pynq4", "corpora", "test"]
    for one in _requirements("pyproject.toml", extras):
        if not one.marker or one.marker.evaluate({"python_version": python}):
            assert one.specifier.contains(locked[canonicalize_name(one.name)]), f"{one}: run make lock"


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


def test_the_second_lock_has_torch_pip_and_uv_with_hashes():
    """Of PyPI's files, and of the builds for the CPU those that are known; it shares no package with the first."""
    text = (ROOT / "requirements-torch.lock").read_text(encoding="utf-8")
    entries = dict(re.findall(r"^([^\s#]\S*)[^\n]*?((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", text, re.MULTILINE))
    assert len(entries) == len(re.findall(r"^[^\s#]", text, re.MULTILINE)) and "://" not in text
    uv = re.search(r"^UV_VERSION := (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)[1]
    torch = f"torch=={_pinned_torch()}"
    assert {torch, f"{torch}+cpu", f"uv=={uv}"} < entries.keys() and any(name.startswith("pip==") for name in entries)
    assert entries[torch].count("sha256") > 20  # wheels of PyPI
    sys.path.insert(0, str(ROOT / "tools"))
    from torch_lock import CPU_WHEELS, locked

    assert {sha in entries[f"{torch}+cpu"] for sha in CPU_WHEELS.values()} == {True}
    names = {name.partition("==")[0] for name in entries}
    assert not names & {name for python in PYTHONS for name in _locked(python)}
    needs = {r.name for r in map(Requirement, _project()["tool"]["uv"]["dependency-metadata"][0]["requires-dist"])}
    assert needs <= {name for python in PYTHONS for name in _locked(python)} and not needs & names
    common, compiled = (
        "a==1 \\\n    --hash=sha256:1\n",
        "a==1 \\\n    --hash=sha256:1\ntorch==9 \\\n    --hash=sha256:2\n",
    )
    assert [line.split()[0] for line in locked(compiled, common).splitlines() if "==" in line] == [
        "torch==9+cpu",
        "torch==9",
    ]


def test_the_tools_of_ci_have_hashes():
    """Those of `make audit`, `make sbom` and `make mutants`: the Makefile installs none by its version alone."""
    text = (ROOT / "requirements-tools.lock").read_text(encoding="utf-8")
    entries = re.findall(r"^([^\s#]\S*)[^\n]*?((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", text, re.MULTILINE)
    assert len(entries) == len(re.findall(r"^[^\s#]", text, re.MULTILINE)) and "://" not in text
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    tools = re.search(r"^TOOLS := (.*)$", makefile, re.MULTILINE)[1].split()
    assert len(tools) == 6 and set(tools) < {name for name, _ in entries}
    assert "tool run" not in makefile
    commands = makefile.replace("\\\n", " ").splitlines()
    installs = [line for line in commands if re.search(r"pip install|\$\(INSTALL\)", line) and not line.startswith("#")]
    ours = [line for line in installs if "--require-hashes" in line]
    assert len(ours) >= 4
    for line in set(installs) - set(ours):
        assert "==" not in line, line


def test_python_3_10_has_no_hash_of_pytorch_for_cpus(monkeypatch):
    """Open in docs/security.md: it says so until that file is in CPU_WHEELS, too."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    from torch_lock import CPU_WHEELS, HEADER

    assert {name.split("-")[2] for name in CPU_WHEELS} == {"cp311", "cp312"}
    assert "3.10 has no hash" in HEADER and (ROOT / "requirements-torch.lock").read_text().startswith(HEADER)


def test_scripts_pin_the_versions_of_what_they_install():
    """Open in docs/security.md: by version, without hashes."""
    found = []
    for script in (ROOT / "findings").glob("*.sh"):
        for line in re.findall(r"pip\" install ([^\n]+)", script.read_text(encoding="utf-8")):
            found += [(script.name, word) for word in line.split() if word[0].isalnum()]
    assert len(found) > 20
    assert [(name, word) for name, word in found if not re.match(r"[\w.-]+(\[\w+\])?==[\d.]+", word)] == []
    sys.path.insert(0, str(ROOT / "tools"))
    import others

    packages = [package for probe in others.PROBES.values() for package in probe.requirements]
    assert len(packages) > 15 and all("==" in package for package in packages)


def test_no_release_is_signed_by_us():
    """Open in docs/security.md: the publishing action attests files, no workflow signs, a tag names the base image."""
    workflows = "".join(path.read_text(encoding="utf-8") for path in WORKFLOWS)
    assert not re.search(r"sigstore|cosign|attest|gpg", workflows + (ROOT / "Makefile").read_text())
    assert workflows.count("id-token: write") == 1 and "password:" not in workflows and "secrets." not in workflows
    (base,) = re.findall(r"^ARG BASE=(.*)$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert ":" in base and "@sha256" not in base


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_by_commit_and_keep_no_credentials(path):
    text = path.read_text(encoding="utf-8")
    uses = re.findall(r"uses: (\S+)(.*)", text)
    assert len(uses) >= 2 and all(re.fullmatch(r"(actions|pypa)/[\w-]+@[0-9a-f]{40}", action) for action, _ in uses)
    assert all(re.fullmatch(r"  # v[\d.]+", version) for _, version in uses)
    assert text.count("persist-credentials: false") == text.count("actions/checkout@") > 0
    assert "\npermissions:\n  contents: read\n\n" in text  # for all jobs but the one that publishes
    assert text.count("permissions:") == 1 + text.count("environment: pypi")
    assert text.count("timeout-minutes:") == text.count("runs-on:")


FORMS = ROOT / ".github" / "ISSUE_TEMPLATE"


@pytest.mark.parametrize(
    ("schema", "paths"),
    [
        ("github-workflows", WORKFLOWS),
        ("github-issue-forms", sorted(set(FORMS.iterdir()) - {FORMS / "config.yml"})),
        ("github-issue-config", [FORMS / "config.yml"]),
        ("citation-file-format", [ROOT / "CITATION.cff"]),
    ],
)
def test_what_others_read_fits_their_schema(schema, paths, tmp_path):
    """GitHub's workflows and forms, and the citation: by the schemas that check-jsonschema carries."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    done = subprocess.run([*command, *map(str, paths)], capture_output=True, text=True)
    assert paths and done.returncode == 0, done.stdout + done.stderr
    bad = tmp_path / "bad.yml"
    bad.write_text(paths[0].read_text(encoding="utf-8") + "\nno-such-key: {}\n", encoding="utf-8")
    assert subprocess.run([*command, str(bad)], capture_output=True).returncode == 1


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_call_targets_and_tools_that_are_there(path):
    """A schema knows neither the Makefile nor the tools."""
    (targets,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    lines = re.findall(r"- run: (.*)", path.read_text(encoding="utf-8"))
    called = {word for line in lines for word in re.findall(r"\bmake (?:\$\{\{.*?\}\}|([\w-]+))", line) if word}
    called |= {word for line in lines for word in re.findall(r"'([\w-]+)' \|\| '([\w-]+)'", line) for word in word}
    assert called and called <= set(targets.split())
    assert {tool for line in lines for tool in re.findall(r"tools/\w+", line) if not (ROOT / tool).is_file()} == set()


def test_the_proxys_packages_have_hashes_and_run_on_the_hosts_node():
    folder = ROOT / "classroom" / "proxy"
    lock = json.loads((folder / "package-lock.json").read_text(encoding="utf-8"))
    wanted = json.loads((folder / "package.json").read_text(encoding="utf-8"))
    packages = {name: row for name, row in lock["packages"].items() if name}
    assert len(packages) > 30 and lock["packages"][""]["dependencies"] == wanted["dependencies"]
    for row in packages.values():
        assert row["integrity"].startswith("sha512-") and "hasInstallScript" not in row
        least = [int(number) for number in re.findall(r"(\d+)", row.get("engines", {}).get("node", "0"))[:1]]
        assert least <= [18]


def test_an_audit_that_could_not_ask_is_not_clean(monkeypatch, capsys):
    sys.path.insert(0, str(ROOT / "tools"))
    import audit

    sound = {"name": "a", "version": "1", "vulns": []}
    bad = {"name": "b", "version": "2", "vulns": [{"id": "X-1", "fix_versions": ["3"]}]}
    skipped = {"name": "c", "skip_reason": "not found"}
    clean_node, bad_node = {"vulnerabilities": {}}, {"vulnerabilities": {"n": {"range": "<2", "severity": "high"}}}
    for packages, node, code, lines in (
        ([sound], clean_node, 0, ["0 known vulnerabilities, 0 unknown: clean"]),
        ([sound, bad], clean_node, 1, ["vulnerable: b 2: X-1; fixed in 3"]),
        ([sound, skipped], clean_node, 3, ["unknown: c (not found)", "0 known vulnerabilities, 1 unknown: not clean"]),
        ([bad, skipped], clean_node, 1, ["vulnerable: b 2: X-1; fixed in 3", "unknown: c (not found)"]),
        ([sound], bad_node, 1, ["vulnerable: n <2: high"]),
        ([sound], {"message": "405"}, 3, ["unknown: packages of classroom/proxy (405)"]),
        (None, clean_node, 3, ["unknown: packages of Python (it says no)"]),
    ):
        answers = {"npm": node, "pip-audit": None if packages is None else {"dependencies": packages}}

        def run(command, answers=answers, **options):
            if str(command[0]).endswith("locked"):
                return subprocess.CompletedProcess(command, 0, b"", b"")
            answer = answers[Path(command[0]).name]
            return subprocess.CompletedProcess(command, 1, json.dumps(answer) if answer else "", "it says no")

        with monkeypatch.context() as patch:
            patch.setattr(audit.subprocess, "run", run)
            assert audit.main("bin/pip-audit") == code
        printed = capsys.readouterr().out.splitlines()
        assert set(lines) <= set(printed), printed


@pytest.mark.long
@pytest.mark.parametrize(
    ("warning", "in_ci", "elsewhere"),
    [
        ('"a change", DeprecationWarning', False, True),
        ('"a change", FutureWarning', False, True),
        ('"a fault"', False, True),
        ('"No devices found"', True, True),
    ],
)
def test_warnings_are_errors_in_ci_alone(tmp_path, warning, in_ci, elsewhere):
    test = tmp_path / "test_warns.py"
    test.write_text(f"import warnings\n\n\ndef test_it():\n    warnings.warn({warning}, stacklevel=1)\n")
    folders = (ROOT, *(ROOT / name for name in ("tools", "tests", "tests/helpers")))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-n",
        "0",
        "-c",
        str(ROOT / "pyproject.toml"),
        "-p",
        "conftest",
        str(test),
    ]
    for ci, passes in (("true", in_ci), ("", elsewhere)):
        env = os.environ | {"CI": ci, "PYTHONPATH": os.pathsep.join(map(str, folders))}
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == (0 if passes else 1), done.stdout + done.stderr


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


def test_the_files_that_start_first_are_there(pytestconfig):
    """One that was renamed would start last, and all workers would wait for it."""
    first = pytestconfig.pluginmanager.get_plugin(str(ROOT / "conftest.py")).LONGEST
    files = {path.stem for folder in ("tests", "lib") for path in (ROOT / folder).rglob("test_*.py")}
    assert first and set(first) <= files


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no checkout")
def test_no_real_corpus_is_committed():
    files = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert not [f for f in files if re.match(r"data/(atis|snips)/", f)]
