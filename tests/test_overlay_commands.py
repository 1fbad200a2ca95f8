"""The command line on the overlays: what a user types, on real ATIS and the emulated card."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from bttlab.card import EmulatedU50
from bttlab.cli import main

from conftest import ROOT


def train(capsys, *arguments) -> dict:
    capsys.readouterr()
    assert main(["train", "--device", "emulated", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.long
def test_an_epoch_of_atis_reports_the_test_metrics(atis, tmp_path, capsys):
    report = train(capsys, "--encoders", 2, "--data", atis, "--epochs", 1, "--seed", 0, "--out", tmp_path / "run")
    assert report["device"] == "the emulated U50, overlay trainer" and report["parameters"] == 300_288
    assert report["last_epoch"]["samples"] == 4478 and report["test"]["utterances"] == 893
    # Far above what always answering flight (70.8 %) and tagging nothing would score.
    assert report["test"]["intent_accuracy"] > 0.78 and report["test"]["slot_f1"] > 0.55
    assert 0.15 < report["test"]["frame_accuracy"] < report["test"]["intent_accuracy"]
    assert report["last_epoch"]["samples_per_second"]["provenance"] == "measured"
    assert main(["eval", "--run", str(tmp_path / "run"), "--split", "test", "--json"]) == 0
    evaluated = json.loads(capsys.readouterr().out)
    assert {key: evaluated[key] for key in report["test"]} == report["test"]


def test_the_largest_model_completes_100_samples(short_airline, tmp_path, capsys):
    size = ("--encoders", 6, "--samples", 100)
    report = train(capsys, *size, "--data", short_airline, "--out", tmp_path / "run")
    assert report["status"] == "complete" and report["last_epoch"]["samples"] == 100


@pytest.mark.long
def test_the_stored_parameters_do_not_depend_on_the_run_or_the_image(short_airline, tmp_path, capsys, monkeypatch):
    setting = ("--data", short_airline, "--samples", 150, "--optimizer", "adamw", "--seed", 3)
    digests = set()
    for number, image in enumerate((None, None, "avx2")):
        if image:
            monkeypatch.setenv("BTTLAB_IMAGE", image)
        report = train(capsys, *setting, "--out", tmp_path / str(number))
        digests.add(report["parameters_sha256"])
    assert len(digests) == 1


@pytest.mark.long
def test_ctrl_c_stops_at_a_sample_and_resume_gives_the_bits_of_an_unbroken_run(short_airline, tmp_path, capsys):
    setting = ["--data", str(short_airline), "--samples", "1000", "--optimizer", "momentum"]
    whole = train(capsys, *setting, "--out", tmp_path / "whole")
    folder = tmp_path / "broken"
    command = [sys.executable, "-m", "bttlab", "train", "--device", "emulated", *setting, "--out", str(folder)]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:  # the announcement comes before the first sample
        if "training on" in line:
            break
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=600)
    assert process.returncode == 130, error
    assert "--resume" in error and os.path.isfile(folder / "checkpoint.safetensors")
    resumed = train(capsys, "--resume", folder)
    assert resumed["parameters_sha256"] == whole["parameters_sha256"]
    assert resumed["test"] == whole["test"]


def test_an_overlay_that_is_not_the_manifests_needs_trust(short_airline, tmp_path, capsys, monkeypatch):
    overlays = tmp_path / "overlays"
    shutil.copytree(ROOT / "overlays", overlays)
    rows = json.loads((overlays / "manifest.json").read_text())
    del rows["sha256"]
    for row in rows["overlays"]:
        row["sha256"] = "0" * 64
    (overlays / "manifest.json").write_text(json.dumps(rows))
    monkeypatch.setenv("BTTLAB_OVERLAYS", str(overlays))
    monkeypatch.setattr(EmulatedU50, "_trusted", set())
    folder, data = tmp_path / "run", ["--data", str(short_airline)]
    for command in (
        ["train", "--device", "emulated", "--samples", "2", *data, "--out", str(folder)],
        ["eval", "--run", str(folder), "--split", "dev"],
        ["bringup", "--device", "emulated", "--samples", "2", "--record", str(tmp_path / "record")],
    ):
        assert main(command) == (1 if command[0] == "bringup" else 2)
        error = capsys.readouterr().err
        assert "trainer.xclbin is not the file that manifest.json lists" in error and "--trust" in error
        assert main([*command, "--trust"]) == 0
        EmulatedU50._trusted.clear()


def test_a_rate_that_diverges_stops_and_saves(tmp_path, capsys):
    assert (
        main(["train", "--samples", "100", "--lr", "1e20", "--device", "emulated", "--out", str(tmp_path / "run")]) == 2
    )
    error = capsys.readouterr().err
    assert "would not be finite" in error and (tmp_path / "run" / "checkpoint.safetensors").is_file()
