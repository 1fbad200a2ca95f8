"""Checks for each Python. `make quick` runs these with one for which there is no time for every test."""

import os
import pkgutil
from importlib import import_module
from pathlib import Path

import pytest

import bttlab
from command_line import run_json

pytestmark = [pytest.mark.long, pytest.mark.every_python]

PARAMETERS = (
    "BTTLAB_PARAMETERS"  # a file for the digest of trained parameters, which runs with other Pythons have written
)


def test_every_module_can_be_imported():
    names = [module.name for module in pkgutil.walk_packages(bttlab.__path__, "bttlab.")]
    assert len(names) > 100
    for name in names:
        if not name.endswith("__main__") and name != "bttlab.teaching.notebooks":
            import_module(name)


def test_doctor_is_content_with_packages_and_overlays(capsys):
    checks = {check["name"]: check["status"] for check in run_json(capsys, "doctor")["checks"]}
    assert checks["packages"] == checks["overlays"] == checks["cards"].replace("note", "ok") == "ok"


def test_training_gives_the_same_parameters_with_each_python(short_airline, tmp_path, capsys):
    train = ("train", "--data", str(short_airline), "--samples", "200", "--device", "emulated", "--out")
    digest = run_json(capsys, *train, str(tmp_path / "run"))["parameters_sha256"]
    assert digest == run_json(capsys, *train, str(tmp_path / "again"))["parameters_sha256"]
    if os.environ.get(PARAMETERS):
        known = Path(os.environ[PARAMETERS])
        if not known.exists():
            known.write_text(digest)
        assert known.read_text() == digest
