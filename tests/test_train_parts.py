"""The small parts of the run loop: the metrics file, the progress bar, the memory of a corpus."""

import errno
import os
import sys

import numpy as np
import pytest

from bttlab.data import CorpusError, load_corpus
from bttlab.runs import CorpusRecord, ProgressBar, RunError, progress
from bttlab.runs.metrics import MetricsLog
from bttlab.runs.scores import is_better
from tiny_runs import CONFIG, write_corpus


def epoch(number: int) -> dict:
    return {"event": "epoch", "epoch": number, "samples": 3}


def test_metrics_without_room_keep_whole_lines(tmp_path, monkeypatch):
    log = MetricsLog(tmp_path)
    log.append(epoch(1))

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"metrics.jsonl cannot be written \(No space left on device\).*--resume"):
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
    record = CorpusRecord.of(load_corpus(first), CONFIG)
    assert record.relabelled(load_corpus(other)).slot_labels == load_corpus(first).slot_labels
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
    assert is_better({"perplexity": 3.0}, {"perplexity": 4.0})
