"""Damaged and hostile records: refused, or left out and named; never other values, a traceback or gigabytes."""

import json
import shutil

import pytest

import tiny_runs
from bttlab.cli import main
from bttlab.runs.metrics import METRICS, MetricsLog, read_curves


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("damage")
    tiny_runs.train(folder / "run", tiny_runs.write_corpus(folder / "corpus"))
    return folder / "run"


def test_damaged_lines_of_metrics_are_left_out_and_named(run, tmp_path):
    data, lines = (run / METRICS).read_bytes(), MetricsLog(run).lines
    assert len(lines) == 4
    for number, damage in enumerate((b"torn", b"", b"[1]", b"\xff", b'{"event": "epoch", "epoch": 2, "samples": "x"}')):
        folder = tmp_path / str(number)
        folder.mkdir()
        whole = data.splitlines(keepends=True)
        (folder / METRICS).write_bytes(b"".join([whole[0], damage, b"\n", *whole[2:]]))
        assert MetricsLog(folder).lines == [lines[0], *lines[2:]]
        assert [fault[:30] for fault in read_curves(folder).faults] == ["line 2 of metrics.jsonl is lef"] * bool(damage)


@pytest.mark.parametrize(
    "line",
    [
        {"event": "epoch", "epoch": 1, "samples": 10**400},
        {"event": "epoch", "epoch": 1, "samples": 24, "dev": {"frame_accuracy": "x"}},
        {"event": "epoch", "epoch": 1, "samples": 24, "dev": [1], "seconds": 3},
        {"event": "epoch", "epoch": 1, "samples": 24, "seconds": {"value": "x", "unit": "s", "provenance": "measured"}},
        {"event": "test", "epochs": [], "test": {"slot_f1": {}}},
    ],
)
def test_forged_metrics_stop_no_resume(run, tmp_path, line):
    folder = shutil.copytree(run, tmp_path / "run")
    text = (folder / METRICS).read_text().splitlines(keepends=True)
    (folder / METRICS).write_text("".join([json.dumps(line) + "\n", *text[1:], json.dumps(line) + "\n"]))
    result = tiny_runs.resume(folder, epochs=4)
    assert result.test and len(MetricsLog(folder).lines) == 4
    assert main(["runs", "show", str(folder)]) == 0
