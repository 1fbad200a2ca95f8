"""The small parts of the run loop: the metrics file, damaged or full disks, the progress bar, a corpus remembered."""

import errno
import json
import os
import shutil
import sys

import numpy as np
import pytest

from bttlab.cli import main
from bttlab.data import CorpusError, load_corpus
from bttlab.runs import CorpusRecord, ProgressBar, RunError, progress
from bttlab.runs.metrics import METRICS_FILE, MetricsLog, read_curves
from bttlab.runs.scores import is_better
from tiny_runs import CONFIG, resume, train, write_corpus


def epoch(number: int) -> dict:
    return {"event": "epoch", "epoch": number, "samples": 3}


def test_metrics_without_room_keep_whole_lines(tmp_path, monkeypatch):
    log = MetricsLog(tmp_path)
    log.append(epoch(1))

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        RunError, match=r"metrics.jsonl cannot be read or written \(No space left on device\).*--resume"
    ):
        log.append(epoch(2))
    with pytest.raises(RunError, match="No space left"):
        MetricsLog(tmp_path).rewind(0)
    assert MetricsLog(tmp_path).lines == [epoch(1)]
    assert os.listdir(tmp_path) == ["metrics.jsonl"]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_shows_loss_and_rate_on_stderr(capsys, monkeypatch, is_terminal):
    monkeypatch.setattr(progress, "LOG_SECONDS", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    bar = ProgressBar()
    bar.end()
    bar.begin("epoch 1/1", total=4, done=1)
    for loss in (2.0, 4.0, 3.0):
        bar.advance(np.array([loss], np.float32))
    bar.note("a note")
    bar.end()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "epoch 1/1" in captured.err and "4/4" in captured.err and "samples/s" in captured.err
    assert "loss 3.000" in captured.err and "bttlab: a note\n" in captured.err


def test_another_corpus_takes_the_label_ids_of_the_first(tmp_path):
    first, other = write_corpus(tmp_path / "a"), write_corpus(tmp_path / "b")
    (other / "slot_label.txt").write_text("PAD\nUNK\nI-city\nB-city\nO\n")
    (other / "intent_label.txt").write_text("fare\nflight\nUNK\n")
    record = CorpusRecord.of(load_corpus(first), CONFIG)
    relabelled, known = record.relabelled(load_corpus(other)), load_corpus(first)
    assert relabelled.slot_labels == known.slot_labels and relabelled.intent_labels == known.intent_labels
    (first / "intent_label.txt").write_text("flight\nfare\n")
    record = CorpusRecord.of(load_corpus(first), CONFIG)
    (other / "intent_label.txt").write_text("flight\nfare\nhotel\n")
    for split in ("train", "dev", "test"):
        path = other / split / "label"
        path.write_text(path.read_text().replace("fare", "hotel"))
    with pytest.raises(CorpusError, match="intent label 'hotel', which a, the corpus of the run, has not"):
        record.relabelled(load_corpus(other))


def test_the_better_score_is_that_of_the_most_tasks_that_there_are():
    both, intents = {"frame_accuracy": 0.2, "intent_accuracy": 0.5}, {"intent_accuracy": 0.4, "mean_loss": 1.0}
    assert is_better(both, {"frame_accuracy": 0.1, "intent_accuracy": 0.9}) and is_better(both, {})
    assert not is_better(intents, {"intent_accuracy": 0.4, "mean_loss": 9.0})  # a corpus without slots
    assert is_better({"perplexity": 3.0}, {"perplexity": 4.0}) and not is_better(
        {"perplexity": 4.0}, {"perplexity": 3.0}
    )


def test_where_the_first_score_is_equal_the_others_decide():
    """Frame accuracy is 0 over the first epochs: the first of them stayed the best one."""
    first = {"mean_loss": 4.0, "intent_accuracy": 0.6, "slot_f1": 0.01, "frame_accuracy": 0.0}
    assert is_better(first | {"slot_f1": 0.07}, first) and not is_better(first, first | {"slot_f1": 0.07})
    assert is_better(first | {"intent_accuracy": 0.7, "slot_f1": 0.0}, first)
    assert not is_better(first | {"intent_accuracy": 0.5, "slot_f1": 0.9}, first)
    assert is_better(first | {"frame_accuracy": 0.1, "intent_accuracy": 0.1}, first) and not is_better(first, first)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("damage")
    train(folder / "run", write_corpus(folder / "corpus"))
    return folder / "run"


def test_damaged_lines_of_metrics_are_left_out_and_named(run, tmp_path):
    data, lines = (run / METRICS_FILE).read_bytes(), MetricsLog(run).lines
    assert len(lines) == 4
    for number, damage in enumerate((b"torn", b"", b"[1]", b"\xff", b'{"event": "epoch", "epoch": 2, "samples": "x"}')):
        folder = tmp_path / str(number)
        folder.mkdir()
        whole = data.splitlines(keepends=True)
        (folder / METRICS_FILE).write_bytes(b"".join([whole[0], damage, b"\n", *whole[2:]]))
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
    text = (folder / METRICS_FILE).read_text().splitlines(keepends=True)
    (folder / METRICS_FILE).write_text("".join([json.dumps(line) + "\n", *text[1:], json.dumps(line) + "\n"]))
    result = resume(folder, epochs=4)
    assert result.test and len(MetricsLog(folder).lines) == 4
    assert main(["runs", "show", str(folder)]) == 0
