"""Find a Python, make an environment, and name missing packages: tools/ and the Makefile, on a small project."""

import ensurepip
import hashlib
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from conftest import ROOT

pytestmark = pytest.mark.long

SHELL_TOOLS = ("sh", "ls", "sed")
BACKEND = """
import zipfile
def build_editable(folder, config_settings=None, metadata_directory=None):
    with zipfile.ZipFile(f"{folder}/bttlab-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("bttlab-1.dist-info/METADATA", "Metadata-Version: 2.1\\nName: bttlab\\nVersion: 1\\n")
        wheel.writestr("bttlab-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("bttlab-1.dist-info/RECORD", "")
    return "bttlab-1-py3-none-any.whl"
"""
PROJECT = """[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]

[project]
name = "bttlab"
version = "1"

[tool.uv]
constraint-dependencies = ["torch==1"]
dependency-metadata = [{ name = "torch", version = "1", requires-dist = [] }]
"""


def _wheel(folder: Path, name: str, needs: str = "") -> str:
    """Make a package with a module of its name; return its line in a lock."""
    info = f"{name}-1.dist-info"
    files = {
        f"{name}.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    path = folder / f"{name}-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file, text in files.items():
            wheel.writestr(file, text)
    return f"{name}==1 \\\n    --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n    # via bttlab\n"


class Project:
    """A project with our tools/ and Makefile, and a folder with its packages, as a wheelhouse is."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.house = folder / "project", folder / "house"
        self.house.mkdir()
        shutil.copytree(ROOT / "tools", self.folder / "tools", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "Makefile", self.folder)
        (self.folder / "backend.py").write_text(BACKEND)
        (self.folder / "pyproject.toml").write_text(PROJECT)
        (self.folder / "requirements.lock").write_text(_wheel(self.house, "locked"))
        pip = next(Path(ensurepip.__file__).parent.glob("_bundled/pip-*.whl"))
        shutil.copy(pip, self.house)
        version, sha = pip.name.split("-")[1], hashlib.sha256(pip.read_bytes()).hexdigest()
        lines = [f"pip=={version} \\\n    --hash=sha256:{sha}\n", f"torch==1+cpu \\\n    --hash=sha256:{'0' * 64}\n"]
        lines += [_wheel(self.house, name, needs) for name, needs in (("torch", "Requires-Dist: cuda\n"), ("cuda", ""))]
        (self.folder / "requirements-torch.lock").write_text("".join(lines))

    def make(self, *arguments: str) -> subprocess.CompletedProcess:
        process = self.start(*arguments)
        out, err = process.communicate()
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def start(self, *arguments: str) -> subprocess.Popen:
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_", "PYTHON", "MAKE"))
        }
        uv = os.environ.get("UV") or shutil.which("uv") or ".venv-uv/bin/uv"
        uv = ROOT / uv  # make exports a path from there
        command = ["make", "--no-print-directory", f"UV={uv}", "environment", f"WHEELHOUSE={self.house}", *arguments]
        clean["UV_CACHE_DIR"] = str(self.folder / "cache")
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, cwd=self.folder, env=clean, start_new_session=True, **pipes)

    def has(self, *modules: str) -> bool:
        python = self.folder / ".venv" / "bin" / "python"
        return subprocess.run([python, "-c", f"import {', '.join(modules)}"], capture_output=True).returncode == 0


@pytest.fixture
def project(tmp_path) -> Project:
    return Project(tmp_path)


def test_an_environment_of_a_wheelhouse_is_made_once_and_kept_up_to_date(project):
    done = project.make()
    assert done.returncode == 0 and project.has("torch", "cuda", "locked"), done.stderr
    assert project.make().stderr == ""
    (project.folder / ".venv" / "kept").touch()
    with (project.folder / "requirements.lock").open("a") as file:
        file.write(_wheel(project.house, "another"))
    assert project.make().returncode == 0 and project.has("another")
    assert (project.folder / ".venv" / "kept").exists()
    assert project.make(f"PYTHON={sys.executable}").returncode == 0 and project.has("torch", "another")
    assert not (project.folder / ".venv" / "kept").exists()  # made again, for that Python


@pytest.mark.parametrize("seconds", [0.3, 0.8, 1.5])
def test_an_environment_whose_making_was_killed_is_completed(project, seconds):
    """make, uv and pip end at once, wherever they are; the next call finishes what they began."""
    process = project.start()
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    done = project.make()
    assert done.returncode == 0 and project.has("torch", "cuda", "locked"), done.stderr


@pytest.mark.parametrize("name", ["torch", "cuda", "pip"])
def test_another_file_of_a_package_of_the_second_lock_is_not_installed(project, name):
    (file,) = project.house.glob(f"{name}-*.whl")
    with zipfile.ZipFile(file, "a") as wheel:
        wheel.writestr("planted.py", "")
    done = project.make()
    assert done.returncode != 0 and "hash" in done.stderr.lower(), done.stderr
    assert not (project.folder / ".venv" / ".installed").exists() and not project.has("planted")


def _find(*arguments: str, path: str = os.environ["PATH"], home: str = "/nowhere") -> subprocess.CompletedProcess:
    variables = {"PATH": path, "HOME": home}
    return subprocess.run([ROOT / "tools" / "find_python", *arguments], env=variables, capture_output=True, text=True)


@pytest.fixture
def pythons(tmp_path):
    """Make stand-ins: NAME=VERSION, with an X where it cannot make an environment; gives a PATH that has them alone."""
    tools = tmp_path / "bin"

    def make(*named: str) -> str:
        tools.mkdir()
        for tool in SHELL_TOOLS:
            (tools / tool).symlink_to(shutil.which(tool))
        for name, version in (pair.split("=") for pair in named):
            body = f'case "$2" in *ensurepip*) exit {int("X" in version)};; *) echo {version.rstrip("X")};; esac'
            (tools / name).write_text(f"#!/bin/sh\n{body}\n")
            (tools / name).chmod(0o755)
        return str(tools)

    return make


@pytest.mark.parametrize(
    ("here", "found"),
    [
        (("python3.10=3.10", "python3.12=3.12", "python3.13=3.13"), "python3.12"),
        (("python3.12=nothing", "python3.11=3.11", "python3=3.13"), "python3.11"),
        (("python3.12=3.12X", "python3=3.10"), "python3"),
    ],
)
def test_the_newest_suitable_python_is_found(pythons, here, found):
    path = pythons(*here)
    assert _find(path=path).stdout == f"{path}/{found}\n"


@pytest.mark.parametrize(
    ("here", "why"),
    [
        ((), "none is here"),
        (("python3=3.9",), "this is 3.9"),
        (("python3=3.13",), "this is 3.13, for which numpy < 2, which PYNQ needs, has no wheel"),
        (("python3.12=3.12X",), "python3.12 cannot make an environment (apt-get install python3-venv)"),
    ],
)
def test_one_line_says_why_there_is_no_python(pythons, here, why):
    done = _find(path=pythons(*here))
    assert done.returncode == 2 and not done.stdout and done.stderr.count("\n") == 1
    assert f"needs Python 3.12 or 3.11 or 3.10, and {why}: make … PYTHON=PATH takes another" in done.stderr


@pytest.mark.parametrize(
    ("options", "packages"), [((), {"binutils"}), (("--long",), {"binutils", "chromium", "clang-16", "npm"})]
)
def test_missing_packages_are_named_with_the_command_that_installs_them(pythons, options, packages):
    variables = {"PATH": pythons("g++=1", "make=1")}
    done = subprocess.run([ROOT / "tools" / "test_needs", *options], env=variables, capture_output=True, text=True)
    assert done.returncode == 2 and packages <= set(done.stdout.split()) and "g++" not in done.stdout.split()
    assert "apt-get install binutils" in done.stderr and ("npm ci --prefix " in done.stderr) == bool(options)


@pytest.mark.parametrize(
    ("answer", "options", "called"), [(None, (), False), ("n", (), False), ("y", (), True), (None, ("--yes",), True)]
)
def test_sudo_is_called_after_a_yes_alone(pythons, tmp_path, answer, options, called):
    path = pythons("g++=1", "make=1", "apt-get=1")
    for name, text in (("id", "echo 1000"), ("sudo", f'echo "$@" >> {tmp_path}/sudo')):
        Path(path, name).write_text(f"#!/bin/sh\n{text}\n")
        Path(path, name).chmod(0o755)
    for tool in ("dirname", "cat"):
        Path(path, tool).symlink_to(shutil.which(tool))
    outer, inner = pty.openpty() if answer else (None, subprocess.DEVNULL)
    if answer:
        os.write(outer, f"{answer}\n".encode())
    command = [ROOT / "tools" / "test_needs", "--install", *options]
    done = subprocess.run(command, env={"PATH": path}, stdin=inner, capture_output=True, text=True)
    for descriptor in (outer, inner) if answer else ():
        os.close(descriptor)
    assert done.returncode == (0 if called else 2) and (tmp_path / "sudo").exists() == called
    assert "sudo apt-get install binutils" in done.stderr and ("install them with sudo?" in done.stderr) == bool(answer)
