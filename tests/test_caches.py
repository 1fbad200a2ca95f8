"""No dependency takes what another user has put where it keeps its caches."""

import os
import subprocess
import sys

import pytest

from bttlab.caches import OWN, SHARED, use_private_caches
from own_path import environment
from two_users import NOBODY, shared_folder

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


def test_a_home_that_is_not_there(tmp_path):
    (tmp_path / "file").write_text("")
    places, _ = _places(XDG_CACHE_HOME=str(tmp_path / "file"))
    folder = os.path.dirname(places["TORCHINDUCTOR_CACHE_DIR"])
    assert os.path.basename(folder).startswith("bttlab-caches-") and not os.path.exists(folder)  # removed at the end


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


@pytest.mark.long
def test_torch_compiles_in_the_private_folder(tmp_path):
    """A folder of that name may lie in /tmp, made by another user: torch neither reads nor writes it."""
    code = "import bttlab; from torch._inductor.runtime.cache_dir_utils import cache_dir; print(cache_dir())"
    clean = {name: value for name, value in environment(XDG_CACHE_HOME=str(tmp_path)).items() if name not in VARIABLES}
    done = subprocess.run([sys.executable, "-c", code], env=clean, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(tmp_path / "bttlab" / "libraries" / "torchinductor")
