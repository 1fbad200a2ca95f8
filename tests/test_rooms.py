"""Packages import what is below them, without cycles: CONTRIBUTING.md, and the contracts in pyproject.toml."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LINT = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports('pyproject.toml', cache_dir=None))"


def lint(folder: Path) -> tuple[int, str]:
    """Hold the package in a folder against the contracts beside it."""
    done = subprocess.run(
        [sys.executable, "-c", LINT],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(folder / "lib"), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def house(tmp_path):
    """A copy of the package's source, to plant imports in."""
    shutil.copytree(ROOT / "lib", tmp_path / "lib", ignore=lambda _, names: [n for n in names if n == "__pycache__"])
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_packages_import_what_is_below_them():
    code, text = lint(ROOT)
    assert code == 0, text


@pytest.mark.long
@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        ("tensor/tt.py", "from bttlab.lab import charts", "packages import what is below them BROKEN"),
        (
            "card/hbm.py",
            "def late():\n    from bttlab.estimate import power",
            "packages import what is below them BROKEN",
        ),
        ("lab/charts.py", "from bttlab_cost import prices", "bttlab imports no package beside it BROKEN"),
        ("tensor/shapes.py", "from bttlab.tensor import cost", "no cycles between files or folders BROKEN"),
        ("baseline/gpus.py", "import pynq", "imports no pynq and no widgets BROKEN"),
    ],
)
def test_a_wrong_import_is_found(house, file, line, contract):
    with (house / "lib" / "bttlab" / file).open("a", encoding="utf-8") as source:
        source.write(f"\n{line}\n")
    code, text = lint(house)
    assert code == 1 and contract in " ".join(text.split()), text
