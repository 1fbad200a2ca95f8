"""No dependency takes what another user has put where it keeps its caches."""

import os
import re
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from bttlab.util.caches import OWN, SHARED, use_private_caches
from subprocess_env import environment
from two_users import NOBODY, shared_folder

from conftest import ROOT

VARIABLES = sorted(SHARED | OWN)
PLACES = f"import os, bttlab; print(*(os.environ.get(name, '') for name in {VARIABLES}), sep='\\n')"


def _places(**variables: str) -> tuple[dict[str, str], str]:
    """Return what a process that imports bttlab has in the variables, and what it says."""
    clean = {name: value for name, value in environment().items() if name not in VARIABLES} | variables
    done = subprocess.run([sys.executable, "-c", PLACES], env=clean, capture_output=True, text=True, check=True)
    return dict(zip(VARIABLES, done.stdout.split("\n"), strict=False)), done.stderr


def test_shared_defaults_are_moved_and_others_left(tmp_path):
    places, said = _places(XDG_CACHE_HOME=str(tmp_path))
    for name in SHARED:
        assert places[name] == str(tmp_path / "bttlab" / "libraries" / SHARED[name])
    assert not any(places[name] for name in OWN) and said == ""
    assert (tmp_path / "bttlab" / "libraries").stat().st_mode & 0o777 == 0o700


def test_a_place_of_the_users_own_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in VARIABLES:
        (tmp_path / name).mkdir()
        monkeypatch.setenv(name, str(tmp_path / name))
    use_private_caches()
    assert {name: os.environ[name] for name in VARIABLES} == {name: str(tmp_path / name) for name in VARIABLES}
    assert not (tmp_path / "cache").exists()


@pytest.mark.long
@pytest.mark.parametrize("planted", [*VARIABLES, "XDG_CACHE_HOME"])
def test_what_another_user_planted_is_refused(planted, two_users, tmp_path):
    """The folder is another user's, in a place like /tmp, with a file for the dependency to find."""
    with shared_folder() as shared:
        folder = shared / "planted"
        folder.mkdir()
        (folder / "planted.py").write_text("raise SystemExit('planted code ran')")
        os.chown(folder, NOBODY, -1)
        variables = {"XDG_CACHE_HOME": str(tmp_path)} | {planted: str(folder)}
        places, said = _places(**variables)
        assert str(folder) in said and "another user can change it" in said
        assert not any(place.startswith(str(folder)) for place in places.values())
        assert os.listdir(folder) == ["planted.py"]


COMPILE = "import bttlab, torch; torch.compile(lambda x: torch.sin(x) + 1)(torch.ones(64))"
TRAIN = "train --samples 2 --device emulated --out run --data"
MAKES = ("O_EXCL", "mkdir(", "mkdirat(", "rename", "link(", "linkat(", "symlink")
PATH = re.compile(r'"((?:/tmp|/var/tmp|/dev/shm)/[^"]+)"')


def _in_shared_folders(trace: Path, own: Path) -> tuple[set[str], set[str]]:
    """Return paths in shared folders that are asked for before they are made, and those made; not pytest's, or ours."""
    made, asked = set(), set()
    for line in trace.read_text(errors="replace").splitlines():
        for name in PATH.findall(line):
            if made.isdisjoint([name, *map(str, Path(name).parents)]) and not name.startswith(
                ("/dev/shm/sem.", str(own), str(ROOT))
            ):
                (made if any(word in line for word in MAKES) and " = -1 " not in line else asked).add(name)
    return asked, made


@pytest.mark.long
@pytest.mark.parametrize("command", [COMPILE, TRAIN, "sweep sweep.yaml --workers 1 --out sweep"])
def test_nothing_in_a_shared_folder_is_used_that_this_user_did_not_make(command, short_airline, tmp_path):
    """Others may plant what has a name that they can guess. C's semaphores have random names, made exclusively."""
    (tmp_path / "sweep.yaml").write_text("{kind: estimate, vary: {encoders: [1]}}")
    arguments = ["-c", command] if command == COMPILE else ["-m", "bttlab", *command.split()]
    arguments += [str(short_airline)] * (command == TRAIN)
    clean = {name: value for name, value in environment().items() if name not in VARIABLES}
    trace = tmp_path / "trace"
    done = subprocess.run(
        ["strace", "-f", "-qq", "--seccomp-bpf", "-e", "trace=file", "-o", trace, sys.executable, *arguments],
        env=clean | {"XDG_CACHE_HOME": str(tmp_path), "BTTLAB_RUNS": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    asked, made = _in_shared_folders(trace, Path(*tmp_path.parts[:3]))
    told = re.findall(r"`(/(?:tmp|dev/shm)/[^`]*[?*][^`]*)`", (ROOT / "docs" / "security.md").read_text("utf-8"))
    assert asked == set() and len(told) == 7
    assert {name for name in made if not any(fnmatchcase(name, glob) for glob in told)} == set()
