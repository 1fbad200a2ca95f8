"""Slow packages are imported when they are needed."""

import subprocess
import sys

import pytest

import bttlab
import bttlab.lab
import bttlab.model
import bttlab.tensor
from bttlab.util.lazy import later
from subprocess_env import environment

SLOW = ("torch", "scipy", "setuptools", "pkg_resources", "distutils", "ipywidgets", "pandas", "matplotlib", "dask")


def _python(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("name", ["bttlab.card", "bttlab.lab", "bttlab.model", "bttlab.tensor.cost"])
def test_slow_packages_wait(name):
    assert _python(f"import {name}, sys; print(*sorted(set({SLOW}) & sys.modules.keys()))") == "\n"


def test_what_pynq_delivers_notebooks_with_is_there_when_asked_for():
    code = "import bttlab.card, pynqutils; print(pynqutils.setup_utils.ExtensionsManager('pynq.lib').printable)"
    assert "bttlab" in _python(code)


@pytest.mark.parametrize(
    ("package", "some"),
    [
        (bttlab, ("lab", "tensor")),
        (bttlab.lab, ("Dashboard", "check", "CostExplorer")),  # of its own, of bttlab's plugins, of another package's
        (bttlab.model, ("ModelConfig",)),
        (bttlab.tensor, ("Order",)),
    ],
)
def test_dir_lists_names_that_exist(package, some):
    assert {*some} <= {*dir(package)} == {*package.__all__}
    for name in dir(package):
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        package.no_such_name  # noqa: B018


def test_later_is_over_when_it_is_over():
    before = list(sys.meta_path)
    with pytest.raises(ModuleNotFoundError), later("bttlab.nowhere"):
        import bttlab.nowhere  # noqa: F401
    assert sys.meta_path == before


def test_the_tensor_library_needs_neither_pydantic_nor_pandas():
    use = "import sys, bttlab.tensor as t; [getattr(t, name) for name in t.__all__]"
    assert _python(f"{use}; print({{'pydantic', 'pandas'}} & sys.modules.keys())") == "set()\n"
