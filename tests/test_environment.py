"""Find a Python, make an environment, and name missing packages: tools/ and the Makefile, on a small project."""

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

from small_project import Project, wheel

from conftest import ROOT

pytestmark = pytest.mark.long

SHELL_TOOLS = ("sh", "ls", "sed")


@pytest.fixture
def project(tmp_path) -> Project:
    return Project(tmp_path)


def test_an_environment_of_a_wheelhouse_is_made_once_and_kept_up_to_date(project):
    done = project.make()
    assert done.returncode == 0 and project.has("torch", "cuda", "locked"), done.stderr
    assert project.make().stderr == ""
    (project.folder / ".venv" / "kept").touch()
    with (project.folder / "requirements.lock").open("a") as file:
        file.write(wheel(project.house, "another"))
    assert project.make().returncode == 0 and project.has("another")
    assert (project.folder / ".venv" / "kept").exists()
    assert project.make(f"PYTHON={sys.executable}").returncode == 0 and project.has("torch", "another")
    assert not (project.folder / ".venv" / "kept").exists()  # made again, for that Python


def test_an_environment_with_pynq_4_has_its_lock_in_place_of_two_packages(project):
    lock = project.folder / "requirements.lock"
    lock.write_text(lock.read_text() + "".join(wheel(project.house, name) for name in ("pynq", "numpy")))
    assert project.make().returncode == 0 and project.has("pynq", "numpy") and not project.has("newer")
    (project.folder / "requirements-pynq4.lock").write_text(wheel(project.house, "newer"))
    done = project.make("PYNQ=4", f"PYTHON={sys.executable}")
    assert done.returncode == 0 and project.has("newer", "locked", "torch"), done.stderr
    assert not project.has("pynq") and not project.has("numpy")
    assert project.make().returncode == 0 and project.has("pynq", "numpy")
    (project.folder / ".venv" / "kept").touch()
    assert project.make("PYNQ=4").stderr and project.make("PYNQ=4").stderr == ""  # installed again, once
    assert (project.folder / ".venv" / "kept").exists()
    done = project.make("PYNQ=5")
    assert done.returncode == 2 and "PYNQ=5: there are PYNQ=3, which is 3.0.1, and PYNQ=4" in done.stderr


def test_the_lab_starts_in_a_folder_with_a_blank_in_its_name(tmp_path):
    folder = tmp_path / "my lab"
    (folder / ".venv" / "bin").mkdir(parents=True)
    shutil.copy(ROOT / "Makefile", folder)
    for name, text in (("bttlab", "exit 0"), ("jupyter", 'printf "%s\\n" "$JUPYTER_CONFIG_PATH" "$@"')):
        (folder / ".venv" / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / ".venv" / "bin" / name).chmod(0o755)
    # Variables as without options: those of a `make test PYTHON=…` around this test would count otherwise.
    call = ["make", "--silent", "--old-file=.venv/.installed", "PYTHON=", "VENV=.venv", "PYNQ=3", "lab"]
    done = subprocess.run(call, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"{folder}/tools/jupyter" in done.stdout.splitlines()
    assert f"--ServerApp.root_dir={folder}" in done.stdout.splitlines()


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
        (
            ("python3=3.13",),
            "this is 3.13, for which numpy < 2, which PYNQ 3.0.1 needs, has no wheel (PYNQ=4 takes 3.13)",
        ),
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
