"""Importing bttlab: slow packages wait until they are needed, and caches are in this user's own folder."""

import os
import subprocess
import sys
from importlib import import_module

import pytest

import bttlab
from bttlab.util.caches import HEADERS, SHARED
from subprocess_env import environment

from conftest import ROOT

LONG = pytest.mark.long
SLOW = ("torch", "scipy", "setuptools", "pkg_resources", "distutils", "ipywidgets", "pandas", "matplotlib", "dask")


def _python(code: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=env or environment(), capture_output=True, text=True, check=True)


def test_slow_packages_wait():
    names = "bttlab.card, bttlab.lab, bttlab.model, bttlab.tensor.cost"
    assert _python(f"import {names}, sys; print(*sorted(set({SLOW}) & sys.modules.keys()))").stdout == "\n"


def test_the_first_functions_are_at_the_top_and_wait():
    names = "load_corpus", "load_overlay", "open_trainer", "trace"
    slow = {*SLOW, "pynq", "numpy"}
    code = f"import bttlab, sys; print(set({names}) <= set(bttlab.__all__), *({slow} & sys.modules.keys()))"
    assert _python(code).stdout == "True\n"
    assert bttlab.load_corpus is bttlab.data.load_corpus and bttlab.open_trainer is bttlab.card.open_trainer
    assert bttlab.load_overlay is bttlab.card.load_overlay and callable(bttlab.trace)


def test_what_pynq_delivers_notebooks_with_is_there_when_asked_for():
    code = "import bttlab.card, pynqutils; print(pynqutils.setup_utils.ExtensionsManager('pynq.lib').printable)"
    assert "bttlab" in _python(code).stdout


@pytest.mark.parametrize("stub", sorted((ROOT / "lib").rglob("__init__.pyi")), ids=lambda stub: stub.parent.name)
def test_every_name_of_a_stub_is_there(stub):
    package = import_module(".".join(stub.parent.relative_to(ROOT / "lib").parts))
    assert set() < {*dir(package)} <= {*package.__all__}
    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        package.no_such_name  # noqa: B018


@pytest.mark.parametrize(("asked", "threads"), [({}, 1), pytest.param({"OMP_NUM_THREADS": "2"}, 2, marks=LONG)])
def test_a_notebook_has_one_thread_of_pytorch_unless_asked(asked, threads):
    code = (
        "from IPython.core.interactiveshell import InteractiveShell; InteractiveShell.instance(); import torch; "
        "('OMP_NUM_THREADS' in __import__('os').environ) or torch.set_num_threads(2); "
        "import bttlab.lab; print(torch.get_num_threads())"
    )
    clean = {name: value for name, value in environment().items() if not name.endswith("_NUM_THREADS")}  # of Dask, too
    assert int(_python(code, clean | asked).stdout) == threads


@pytest.mark.long
def test_the_tensor_library_needs_neither_pydantic_nor_pandas():
    use = "import sys, bttlab.tensor as t; [getattr(t, name) for name in t.__all__]"
    assert _python(f"{use}; print({{'pydantic', 'pandas'}} & sys.modules.keys())").stdout == "set()\n"


PLACES = f"import os, bttlab; print(*(os.environ.get(name, '') for name in {sorted(SHARED)}), os.environ[{HEADERS!r}])"


def places(**variables: str) -> list[str]:
    """Return what a process that imports bttlab has in the variables."""
    done = _python(PLACES, {name: value for name, value in environment().items() if name not in SHARED} | variables)
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
