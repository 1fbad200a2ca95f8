"""Slow packages are imported when they are needed."""

import subprocess
import sys
from importlib import import_module

import pytest

from subprocess_env import environment

from conftest import ROOT

LONG = pytest.mark.long
SLOW = ("torch", "scipy", "setuptools", "pkg_resources", "distutils", "ipywidgets", "pandas", "matplotlib", "dask")


def _python(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, check=True).stdout


def test_slow_packages_wait():
    names = "bttlab.card, bttlab.lab, bttlab.model, bttlab.tensor.cost"
    assert _python(f"import {names}, sys; print(*sorted(set({SLOW}) & sys.modules.keys()))") == "\n"


def test_what_pynq_delivers_notebooks_with_is_there_when_asked_for():
    code = "import bttlab.card, pynqutils; print(pynqutils.setup_utils.ExtensionsManager('pynq.lib').printable)"
    assert "bttlab" in _python(code)


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
    done = subprocess.run([sys.executable, "-c", code], env=clean | asked, capture_output=True, text=True, check=True)
    assert int(done.stdout) == threads


@pytest.mark.long
def test_the_tensor_library_needs_neither_pydantic_nor_pandas():
    use = "import sys, bttlab.tensor as t; [getattr(t, name) for name in t.__all__]"
    assert _python(f"{use}; print({{'pydantic', 'pandas'}} & sys.modules.keys())") == "set()\n"
