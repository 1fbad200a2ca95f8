"""Packages import what is below them, without cycles: CONTRIBUTING.md, and the contracts in pyproject.toml."""

import os
import subprocess
import sys

from conftest import ROOT

LINT = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports('pyproject.toml', cache_dir=None))"


def test_packages_import_what_is_below_them():
    command = [sys.executable, "-c", LINT]
    path = os.pathsep.join([str(ROOT / "lib"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
