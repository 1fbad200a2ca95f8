"""tools/: the Python that is looked for, and the environment, on a project of three packages that are made here."""

import base64
import hashlib
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from conftest import ROOT

pytestmark = pytest.mark.long

NO_NETWORK = ["unshare", "--map-root-user", "--net"]
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
dependencies = [
  "torch==1",
]

[tool.other]
"""


def _wheel(folder: Path, name: str, needs: str = "") -> str:
    """Make a package with a module of its name; return its line in a lock."""
    info = f"{name}-1.dist-info"
    files = {
        f"{name}.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip('=')},{len(text)}"
        for path, text in files.items()
    ]
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,"])
    path = folder / f"{name}-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file, text in files.items():
            wheel.writestr(file, text)
    return f"{name}==1 \\\n    --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n    # via bttlab\n"


class Project:
    """A project with tools/ of ours, and the index that its packages are in."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.index = folder / "project", folder / "index"
        self.index.mkdir()
        shutil.copytree(ROOT / "tools", self.folder / "tools", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "Makefile", self.folder)
        (self.folder / "backend.py").write_text(BACKEND)
        (self.folder / "pyproject.toml").write_text(PROJECT)
        (self.folder / "requirements.lock").write_text(_wheel(self.index, "setuptools") + _wheel(self.index, "locked"))
        _wheel(self.index, "torch", "Requires-Dist: cuda\n")
        _wheel(self.index, "cuda")

    def make(self, *goals: str, under: tuple[str, ...] = (), **environment: str) -> subprocess.CompletedProcess:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON", "MAKE"))}
        index = {"PIP_FIND_LINKS": str(self.index), "PIP_NO_INDEX": "1"}
        variables = clean | {"PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "0"}
        variables |= environment or index
        command = [*under, "make", "--no-print-directory", f"PYTHON={sys.executable}", *goals]
        return subprocess.run(command, cwd=self.folder, env=variables, capture_output=True, text=True)

    def has(self, *modules: str) -> bool:
        python = self.folder / ".venv" / "bin" / "python"
        return subprocess.run([python, "-c", f"import {', '.join(modules)}"], capture_output=True).returncode == 0


@pytest.fixture
def project(tmp_path) -> Project:
    return Project(tmp_path)


def _fails(done: subprocess.CompletedProcess, *words: str) -> str:
    lines = [line for line in done.stderr.splitlines() if not line.startswith(("make", "installs", "fetches"))]
    assert done.returncode == 2 and len(lines) == 1, done.stderr
    assert all(word in lines[0] for word in words), lines[0]
    return lines[0]


def test_it_is_made_once_brought_up_to_date_and_made_anew_where_it_is_not_whole(project):
    assert project.make("environment").returncode == 0 and project.has("torch", "cuda", "locked")
    assert project.make("environment", PIP_NO_INDEX="1").stderr == ""  # it needs no index any more
    with (project.folder / "pyproject.toml").open("a") as file:
        file.write("line-length = 1\n")
    assert project.make("environment", PIP_NO_INDEX="1").stderr == ""  # no package hangs on that
    (project.folder / ".venv" / "kept").touch()
    with (project.folder / "requirements.lock").open("a") as file:
        file.write(_wheel(project.index, "another"))
    assert "installs 4 packages" in project.make("environment").stderr and project.has("another")
    assert (project.folder / ".venv" / "kept").exists()
    (project.folder / ".venv" / ".installed").unlink()  # as where the installation was interrupted
    assert "again" in project.make("environment").stderr and project.has("torch", "another")
    assert not (project.folder / ".venv" / "kept").exists()


def test_a_folder_that_is_no_environment_stays(project):
    (project.folder / ".venv").mkdir()
    (project.folder / ".venv" / "thesis.tex").touch()
    _fails(project.make("environment"), ".venv is no environment", "move it away")
    assert (project.folder / ".venv" / "thesis.tex").exists()


def test_without_a_network_a_wheelhouse_is_enough(project, tmp_path):
    house = f"WHEELHOUSE={tmp_path / 'house'}"
    done = project.make("wheelhouse", house)
    assert done.returncode == 0, done.stderr
    shutil.rmtree(project.index)
    probe = "import socket; socket.create_connection(('127.0.0.1', 1))"
    cut = subprocess.run([*NO_NETWORK, sys.executable, "-c", probe], capture_output=True, text=True)
    assert "Network is unreachable" in cut.stderr, f"{NO_NETWORK} does not take the network away here: {cut.stderr}"
    done = project.make("environment", house, under=NO_NETWORK, PIP_INDEX_URL="https://pypi.org/simple")
    assert done.returncode == 0 and project.has("torch", "cuda", "locked"), done.stderr


def test_a_wheelhouse_that_does_not_fit_says_so(project, tmp_path):
    house = tmp_path / "house"
    _fails(project.make("environment", f"WHEELHOUSE={house}"), "no wheelhouse", "make wheelhouse WHEELHOUSE=")
    house.mkdir()
    (house / "holiday.jpg").touch()
    _fails(project.make("wheelhouse", f"WHEELHOUSE={house}"), "has other things in it")
    (house / "wheelhouse.json").write_text(json.dumps({"python": f"3.{sys.version_info[1]}", "pins": "others"}))
    _fails(project.make("environment", f"WHEELHOUSE={house}"), "another version of BTT Lab")
    (house / "wheelhouse.json").write_text(json.dumps({"python": "3.9", "pins": "others"}))
    _fails(project.make("environment", f"WHEELHOUSE={house}"), "needs Python 3.9", f"this is 3.{sys.version_info[1]}")
    assert not (project.folder / ".venv").exists()


def test_a_proxy_that_answers_with_a_web_page(project):
    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!DOCTYPE html><html><body>Please log in to use the internet.</body></html>")

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        _fails(project.make("environment", PIP_INDEX_URL=f"{address}/simple"), "proxy", "web page", "HTTPS_PROXY")
        files = f"{address}/setuptools-1-py3-none-any.whl"
        _fails(project.make("environment", PIP_NO_INDEX="1", PIP_FIND_LINKS=files), "proxy", "web page", "HTTPS_PROXY")
        server.shutdown()
    assert not (project.folder / ".venv").exists()


def test_an_index_that_does_not_answer(project):
    nobody = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "1"}
    _fails(project.make("environment", **nobody), "does not answer", "WHEELHOUSE=DIR")
    assert not (project.folder / ".venv").exists()


def test_a_package_that_is_not_the_locks(project):
    with zipfile.ZipFile(project.index / "locked-1-py3-none-any.whl", "a") as wheel:
        wheel.writestr("more.py", "")
    _fails(project.make("environment"), "not that of requirements.lock")
    assert not (project.folder / ".venv").exists()


def test_no_room_on_the_disk(project):
    (project.folder / "small").mkdir()
    script = 'mount -t tmpfs -o size=4m none small && "$@" && exit 1; code=$?; ls small/.venv; exit $code'
    under = ("unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh")
    done = project.make("environment", "VENV=small/.venv", under=under)
    done.stderr = done.stderr.replace("ls: cannot access 'small/.venv': No such file or directory\n", "", 1)
    _fails(done, "no room on the disk", "GB free in")


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


def test_a_python_that_is_asked_for_is_the_only_one(pythons, tmp_path):
    path = pythons("python3.12=3.12", "old=3.8")
    assert "this is 3.8" in _find("old", path=path).stderr
    assert "gone does not start" in _find("gone", path=path).stderr
    versions = tmp_path / ".pyenv" / "versions" / "3.10.9" / "bin"
    versions.mkdir(parents=True)
    (versions / "python").symlink_to(sys.executable)
    asked = f"3.{sys.version_info[1]}"
    assert _find("", "3.10", path=path, home=str(tmp_path)).returncode == (0 if asked == "3.10" else 2)


@pytest.mark.parametrize(
    ("options", "packages"), [((), {"binutils"}), (("--long",), {"binutils", "chromium", "clang-16", "npm"})]
)
def test_missing_packages_are_named_with_the_command_that_installs_them(pythons, options, packages):
    variables = {"PATH": pythons("g++=1", "make=1")}
    done = subprocess.run([ROOT / "tools" / "test_needs", *options], env=variables, capture_output=True, text=True)
    assert done.returncode == 2 and packages <= set(done.stdout.split()) and "g++" not in done.stdout.split()
    assert "apt-get install binutils" in done.stderr and ("npm install" in done.stderr) == bool(options)


def test_missing_packages_are_installed_by_root(pythons, tmp_path):
    log, path = tmp_path / "log", pythons("make=1", "objdump=1", "g++=1")
    for name, body in (("apt-get", f'echo "$@" >>{log}'), ("id", "echo 0")):
        tool = Path(path) / name
        tool.write_text(f"#!/bin/sh\n{body}\n")
        tool.chmod(0o755)
    (Path(path) / "g++").unlink()
    done = subprocess.run(
        [ROOT / "tools" / "test_needs", "--install"], env={"PATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0 and "install -y -qq --no-install-recommends g++" in log.read_text(), done.stderr
