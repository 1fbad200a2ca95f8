"""What is slow to import is imported by whoever needs it."""

import subprocess
import sys

import pytest

import bttlab.lab
import bttlab.model
import bttlab.tensor
from bttlab.lazy import later
from own_path import environment

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


@pytest.mark.parametrize("package", [bttlab.lab, bttlab.model, bttlab.tensor])
def test_each_public_name_is_found_in_its_module(package):
    assert sorted(package.__all__) == sorted(name for names in package._MODULES.values() for name in names)
    assert not {*package.__all__} & package._MODULES.keys()  # importing such a module would hide the name
    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        package.no_such_name  # noqa: B018


def test_later_is_over_when_it_is_over():
    before = list(sys.meta_path)
    with pytest.raises(ModuleNotFoundError), later("bttlab.nowhere"):
        import bttlab.nowhere  # noqa: F401
    assert sys.meta_path == before
