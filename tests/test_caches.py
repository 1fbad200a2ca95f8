"""Caches of dependencies are in this user's own folder."""

import os
import subprocess
import sys

from bttlab.util.caches import HEADERS, SHARED
from subprocess_env import environment

PLACES = f"import os, bttlab; print(*(os.environ.get(name, '') for name in {sorted(SHARED)}), os.environ[{HEADERS!r}])"


def places(**variables: str) -> list[str]:
    """Return what a process that imports bttlab has in the variables."""
    clean = {name: value for name, value in environment().items() if name not in SHARED} | variables
    done = subprocess.run([sys.executable, "-c", PLACES], env=clean, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_caches_that_all_users_share_are_moved_to_a_private_folder(tmp_path):
    folder = tmp_path / "bttlab" / "libraries"
    assert places(XDG_CACHE_HOME=str(tmp_path)) == [*(str(folder / SHARED[name]) for name in sorted(SHARED)), "0"]
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_place_that_the_environment_names_is_kept(tmp_path):
    given = {name: str(tmp_path / name) for name in SHARED}
    assert places(XDG_CACHE_HOME=str(tmp_path), **given) == [*(given[name] for name in sorted(SHARED)), "0"]


def test_a_home_that_cannot_be_written_ends_nothing():
    assert places(XDG_CACHE_HOME=os.devnull) == ["0"]
