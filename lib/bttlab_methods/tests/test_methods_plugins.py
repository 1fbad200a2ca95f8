"""Methods from outside: by entry point and by file; a broken one is one warning and breaks no other."""

import sys
from importlib.metadata import EntryPoint

import pytest

from bttlab.cli import main
from bttlab_methods import methods, registry

GOOD = '''
from dataclasses import dataclass
import torch
from bttlab_methods import Method

@dataclass(frozen=True)
class Plain(Method):
    """Update by plain gradient descent.

    Parameters
    ----------
    rate : float
    """

    name = "plain-sgd"
    family = "optimizers"
    source = "none"
    changes = frozenset({"optimizer"})
    rate: float = 0.01

    def make_optimizer(self, training):
        return torch.optim.SGD(training.trained, lr=self.rate)
'''


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    registry._installed.cache_clear()
    monkeypatch.setattr(registry, "_from_files", {})
    yield
    registry._installed.cache_clear()


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'"),
        (GOOD.replace('"optimizers"', '"wrong"'), "MethodError: family of plain-sgd is 'wrong': it must be one of"),
        (GOOD.replace("plain-sgd", "lion"), "MethodError: there is a method 'lion' already; choose another name"),
        (GOOD.replace(" = 0.01", ""), "TypeError: "),
        ("x = 1", "MethodError: it has no subclass of bttlab_methods.Method with a name"),
    ],
)
def test_a_broken_file_is_one_warning_and_the_others_stay(tmp_path, capsys, text, warning):
    file = tmp_path / "mine.py"
    file.write_text(text)
    assert main(["methods", "list", "--json", "--plugin", str(file)]) == 0
    out, err = capsys.readouterr()
    assert '"lion"' in out and err.count("\n") == 1
    assert err.startswith(f"bttlab: warning: the plugin {file} is left out: {warning}")


def test_a_method_of_a_file_is_listed_and_parsed(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(GOOD)
    assert main(["methods", "list", "--plugin", str(file)]) == 0
    assert "plain-sgd" in capsys.readouterr().out
    assert registry.parse("plain-sgd:rate=0.5")[0].rate == 0.5


def test_entry_points_add_methods_and_a_broken_one_is_a_warning(tmp_path, capsys, monkeypatch):
    (tmp_path / "package_of_a_method.py").write_text(GOOD)
    monkeypatch.syspath_prepend(tmp_path)
    points = {"mine": "package_of_a_method:Plain", "broken": "no_such_package"}
    made = {name: EntryPoint(name, value, "bttlab.methods") for name, value in points.items()}
    monkeypatch.setattr(registry, "plugins", lambda kind: made)
    assert "plain-sgd" in methods() and "lion" in methods()
    assert capsys.readouterr().err == (
        "bttlab: warning: the plugin broken (no_such_package) is left out: ModuleNotFoundError: No module named "
        "'no_such_package'\n"
    )


@pytest.mark.parametrize("method", ["lion", "lora:pretraining=4"])
def test_a_missing_package_is_one_line_that_names_what_to_install(tmp_path, capsys, monkeypatch, method):
    monkeypatch.setenv("BTTLAB_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("peft", "pytorch_optimizer"):
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["methods", "run", method, "--budget", "8"]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "which is not installed: pip install 'bttlab-methods" in line
