"""The command line on the overlays: what a user types, on real ATIS and the emulated card."""

import json
import shutil

import pytest

from bttlab.card import EmulatedU50
from bttlab.cli import main
from command_line import run_json

from conftest import ROOT


@pytest.mark.long
def test_an_epoch_of_atis_reports_the_test_metrics(atis, tmp_path, capsys):
    train = "train", "--device", "emulated", "--encoders", 2, "--data", atis, "--epochs", 1, "--seed", 0
    report = run_json(capsys, *train, "--out", tmp_path / "run")
    assert report["device"] == "the emulated U50, overlay trainer" and report["parameters"] == 300_288
    assert report["last_epoch"]["samples"] == 4478 and report["test"]["utterances"] == 893
    # Far above what always answering flight (70.8 %) and tagging nothing would score.
    assert report["test"]["intent_accuracy"] > 0.78 and report["test"]["slot_f1"] > 0.55
    assert 0.15 < report["test"]["frame_accuracy"] < report["test"]["intent_accuracy"]
    assert report["last_epoch"]["samples_per_second"]["provenance"] == "measured"
    evaluated = run_json(capsys, "eval", "--run", tmp_path / "run", "--split", "test")
    assert {key: evaluated[key] for key in report["test"]} == report["test"]


def test_an_overlay_that_is_not_the_manifests_needs_trust(short_airline, tmp_path, capsys, monkeypatch):
    overlays = tmp_path / "overlays"
    shutil.copytree(ROOT / "overlays", overlays)
    rows = json.loads((overlays / "manifest.json").read_text())
    for row in rows["overlays"]:
        row["sha256"] = "0" * 64
    (overlays / "manifest.json").write_text(json.dumps(rows))
    monkeypatch.setenv("BTTLAB_OVERLAYS", str(overlays))
    monkeypatch.setattr(EmulatedU50, "_trusted", set())
    folder, data = tmp_path / "run", ["--data", str(short_airline)]
    own = str(overlays / "trainer.xclbin")
    for command in (
        ["train", "--device", "emulated", "--samples", "2", *data, "--overlay", own, "--out", str(folder)],
        ["eval", "--run", str(folder), "--split", "dev"],
        ["bringup", "--device", "emulated", "--samples", "2", "--record", str(tmp_path / "record")],
    ):
        assert main(command) == (1 if command[0] == "bringup" else 2)
        error = capsys.readouterr().err
        assert "trainer.xclbin is not the file that manifest.json lists" in error and "--trust" in error
        assert command[0] == "bringup" or folder.exists() == (command[0] == "eval")
        assert main([*command, "--trust"]) == 0
        EmulatedU50._trusted.clear()
    assert json.loads((folder / "run.json").read_text())["configuration"]["overlay"] == own
