"""Runs can be found again: run.json beside each run, the index over them, and the command that asks it."""

import json
import multiprocessing
import shutil
import sqlite3
import threading
from pathlib import Path

import numpy as np
import pytest

import tiny_runs
from bttlab.cli import main
from bttlab.lab import RunBrowser
from bttlab.runs import Filter, RunIndex, RunRecord, read_run, tensors_digest
from bttlab.runs import index as index_module
from bttlab.runs.curves import METRICS, MOST_LINES, even, read_curves, stretches
from bttlab.runs.index import INDEX, RunIndexError
from bttlab.runs.keep import index_run
from bttlab.runs.record import RUN_FILE
from bttlab.util.quantities import measured
from bttlab.util.terminal import printable


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """An index of its own, for this test."""
    folder = tmp_path / "index"
    monkeypatch.setenv("BTTLAB_RUNS", str(folder))
    return folder


def _record(number: int, **values) -> RunRecord:
    configuration = {"linear_rank": 4 * number, "learning_rate": 10.0**-number, "data": "atis", "modes": [2, number]}
    figures = {"dev.frame_accuracy": measured(number / 10, "1", "by hand")}
    values = {"id": f"{number:04d}abcd", "begun": f"2026-01-0{number}T00:00:00+00:00", "status": "complete"} | values
    return RunRecord("training", f"run-{number}", configuration, "a device", figures=figures, **values)


@pytest.fixture
def three(runs, tmp_path):
    index = RunIndex()
    for number in (1, 2, 3):
        folder = tmp_path / f"run-{number}"
        folder.mkdir()
        _record(number).write(folder)
        index.add(_record(number), folder)
    return index


def _names(index, *conditions, **options):
    return [run.record.name for run in index.find(Filter(conditions, **options))]


def _told(capsys, *arguments):
    assert main(["runs", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


# --- what a training leaves


def test_a_training_leaves_its_record_from_the_beginning(corpus, tmp_path, runs):
    seen = []

    def on_record(record):
        seen.append(record.status)

    run = tiny_runs.start_run(tmp_path / "run", tiny_runs.settings(corpus), tiny_runs.load_corpus(corpus))
    result = run.train(tiny_runs.ReferenceTrainer(tiny_runs.CONFIG), tiny_runs.DEVICE, on_record=on_record)
    assert seen == ["running", "complete"]
    (found,) = RunIndex().find()
    record = read_run(tmp_path / "run")
    assert found.record == record and found.folder == tmp_path / "run"
    assert record.configuration["linear_rank"] == 2 and record.configuration["optimizer"] == "sgd"
    assert record.figures["dev.slot_f1"]["value"] == result.epoch["dev"]["slot_f1"]
    assert record.figures["test.slot_f1"]["value"] == result.test["slot_f1"]
    assert record.figures["samples"]["value"] == 3 * tiny_runs.SIZES["train"]
    assert all(figure["provenance"] == "measured" and figure["how"] for figure in record.figures.values())
    assert (tmp_path / "run" / record.checkpoint).is_file() and record.versions["torch"]


def test_a_stopped_run_says_so_and_goes_on_under_its_id(corpus, tmp_path):
    run = tiny_runs.start_run(tmp_path / "run", tiny_runs.settings(corpus), tiny_runs.load_corpus(corpus))
    result = run.train(tiny_runs.ReferenceTrainer(tiny_runs.CONFIG), tiny_runs.DEVICE, enough=lambda: True)
    stopped = read_run(tmp_path / "run")
    assert result.test is None and stopped.status == "stopped"
    whole = tiny_runs.resume(tmp_path / "run")
    record = read_run(tmp_path / "run")
    assert (record.id, record.status, record.begun) == (stopped.id, "complete", stopped.begun)
    assert whole.parameters_sha256 == tiny_runs.train(tmp_path / "unbroken", corpus).parameters_sha256


def test_a_run_that_fails_keeps_the_reason(corpus, tmp_path):
    def fail():
        raise RuntimeError("the card is gone")

    with pytest.raises(RuntimeError):
        tiny_runs.train(tmp_path / "run", corpus, trainer=tiny_runs.Interrupter(2, fail))
    record = read_run(tmp_path / "run")
    assert record.status == "failed" and "the card is gone" in record.error


def test_curves_cover_all_samples(corpus, tmp_path):
    tiny_runs.train(tmp_path / "run", corpus)
    curves = read_curves(tmp_path / "run")
    count = tiny_runs.SIZES["train"]
    assert curves.samples == list(range(1, 3 * count + 1)) and len(curves.losses) == 3 * count
    assert curves.scored == [count, 2 * count, 3 * count]
    lines = tiny_runs.metrics(tmp_path / "run")
    assert curves.scores["slot_f1"] == [line["dev"]["slot_f1"] for line in lines[:3]]


def test_curves_of_thousands_of_epochs_have_one_loss_each(tmp_path):
    line = {"event": "epoch", "samples": 10, "mean_loss": 2.5, "losses": [4.0, 1.0]}
    for epochs, samples, losses in ((MOST_LINES, [5, 10], [4.0, 1.0]), (MOST_LINES + 1, [10, 20], [2.5, 2.5])):
        (tmp_path / METRICS).write_text(epochs * f"{json.dumps(line)}\n")
        curves = read_curves(tmp_path)
        assert curves.samples[:2] == samples and curves.losses[:2] == losses and curves.samples[-1] == 10 * epochs


def test_stretches_keep_the_mean():
    losses = np.arange(1000, dtype=np.float32)
    found = stretches(losses)
    assert len(found) == 100 and np.mean(found) == losses.mean() and found[0] == 4.5
    assert stretches(losses[:3]) == [0, 1, 2] and stretches(losses[:0]) == []


def test_a_curve_of_unequal_parts_is_averaged_over_equal_ones():
    """Parts of one sample after parts of ten would look noisier."""
    losses = np.random.default_rng(0).normal(size=60)
    parts = [losses[i : i + 10].mean() for i in range(0, 30, 10)] + losses[30:].tolist()
    ends, found = even([10, 20, 30, *range(31, 61)], parts)
    assert ends == [10, 20, 30, 40, 50, 60]
    np.testing.assert_allclose(found, losses.reshape(6, 10).mean(1))
    assert even([5, 10], [1.0, 3.0]) == ([5, 10], [1.0, 3.0])


# --- the index


def test_filters_sorts_and_limits(three):
    assert _names(three) == ["run-3", "run-2", "run-1"]
    assert _names(three, "linear_rank=8") == ["run-2"]
    assert _names(three, "learning_rate<=0.01", "dev.frame_accuracy>0.2") == ["run-3"]
    assert _names(three, "modes=[2, 2]") == ["run-2"]
    assert _names(three, "name!=run-1", sort="dev.frame_accuracy", ascending=True) == ["run-2", "run-3"]
    assert _names(three, limit=1) == ["run-3"]
    assert three.count(Filter(["linear_rank>4"])) == 2
    assert three.keys("configuration") == {"linear_rank": 3, "learning_rate": 3, "data": 1, "modes": 3}
    (row,) = three.rows(["name", "linear_rank", "dev.frame_accuracy"], Filter(["linear_rank=12"]))
    assert (row["name"], row["linear_rank"], row["dev.frame_accuracy"]) == ("run-3", 12, 0.3)


def test_an_id_that_looks_like_a_number_is_text(runs):
    index = RunIndex()
    index.add(_record(1, id="001234567890"), runs / "run-1")
    assert _names(index, "id=001234567890") == ["run-1"] and _names(index, "id=1234567890") == []


def test_a_run_is_found_by_id_name_and_folder(three, tmp_path):
    for name in ("0002abcd", "0002", "run-2", str(tmp_path / "run-2")):
        assert three.get(name).record.name == "run-2"
    for name, message in (("0004", "no run"), ("000", "several"), ("", "no run")):
        with pytest.raises(RunIndexError, match=message):
            three.get(name)


@pytest.mark.parametrize(
    "condition, message",
    [
        ("linear_rnak=8", "do you mean linear_rank"),
        ("rank=8", "do you mean linear_rank"),
        ("frame_accuracy>0", "dev.frame_accuracy"),
        ("linear_rank", "is no condition"),
        ("x'y=1", "no run has"),
    ],
)
def test_a_wrong_condition_is_one_sentence(three, condition, message):
    with pytest.raises(RunIndexError, match=message):
        three.find(Filter([condition]))


def test_who_died_while_running_is_interrupted(runs, tmp_path):
    from bttlab.runs.files import run_lock

    RunIndex().add(_record(1, status="running"), tmp_path)
    assert RunIndex().get("run-1").record.status == "interrupted"
    with run_lock(tmp_path):
        assert RunIndex().get("run-1").record.status == "running"
        assert RunIndex().rows(["id"])[0]["status"] == "running"


def test_the_index_is_built_anew_from_folders(three, tmp_path):
    (tmp_path / "run-2" / RUN_FILE).write_text("{}")
    (three.folder / INDEX).write_text("this was a database")
    with pytest.raises(RunIndexError, match="bttlab runs index"):
        three.find()
    count, faults = three.rebuild([tmp_path])
    assert count == 2 and _names(three) == ["run-3", "run-1"]
    assert len(faults) == 1 and "run-2" in faults[0]


def test_a_run_that_ends_while_the_index_is_rebuilt_is_not_lost(three, tmp_path, monkeypatch):
    """A thread adds run 4, and run 3 as it is now, after the rebuild has read the folders."""
    seen, read = [], index_module.read_run

    def add_meanwhile(folder):
        record = read(folder)
        if folder.name == "run-3":
            seen.append(threading.Thread(target=three.add_all, args=[late]))
            seen[0].start()
        return record

    late = [(_record(4), tmp_path), (_record(3, status="failed"), tmp_path / "run-3")]
    monkeypatch.setattr(index_module, "read_run", add_meanwhile)
    three.rebuild([tmp_path])
    seen[0].join()
    assert _names(three) == ["run-4", "run-3", "run-2", "run-1"]
    assert three.get("run-3").record.status == "failed"


def test_an_index_of_a_newer_version_is_left_alone(three):
    database = sqlite3.connect(three.path)
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(RunIndexError, match="version 99"):
        three.add(_record(4), three.folder)


def _add(folder, number):
    index = RunIndex(folder)
    for _ in range(20):
        index.add(_record(number), folder / str(number))


def test_processes_write_one_index_at_the_same_time(tmp_path):
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_add, args=(tmp_path / "index", number)) for number in range(1, 5)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0] * 4
    assert RunIndex(tmp_path / "index").count() == 4


# --- the command


def test_list_show_and_compare(three, capsys):
    listed = _told(capsys, "list", "--where", "linear_rank>4", "--limit", "1")
    assert listed["total"] == 2 and [run["name"] for run in listed["runs"]] == ["run-3"]
    shown = _told(capsys, "show", "run-2")
    assert shown["figures"]["dev.frame_accuracy"] == measured(0.2, "1", "by hand")
    compared = _told(capsys, "compare", "run-1", "0003")
    assert compared["differing"] == ["linear_rank", "learning_rate", "modes"]
    assert {run["name"] for run in compared["runs"]} == {"run-1", "run-3"}
    listed = _told(capsys, "list", "--where", "linear_rank>4", "--where", "linear_rank<12", "data=atis")
    assert [run["name"] for run in listed["runs"]] == ["run-2"]
    for arguments in (["list"], ["show", "run-1"], ["compare"]):
        assert main(["runs", *arguments]) == 0
        assert "run-1" in capsys.readouterr().out


def test_an_estimate_is_one_run_however_often_it_is_asked(runs, capsys):
    for _ in range(2):
        assert main(["estimate", "--encoders", "2", "--lengths", "13", "--json"]) == 0
    capsys.readouterr()
    (run,) = _told(capsys, "list", "--where", "kind=estimate", "clock_mhz=200")["runs"]
    figures = _told(capsys, "show", run["id"])["figures"]
    assert figures["u50.seconds_per_epoch"]["provenance"] == "modelled"


def test_export_to_csv(three, tmp_path, capsys):
    _told(capsys, "export", "--csv", str(tmp_path / "runs.csv"), "--sort", "begun", "--ascending")
    lines = (tmp_path / "runs.csv").read_text().splitlines()
    assert lines[0].startswith("id,kind,name") and "linear_rank" in lines[0]
    assert [line.split(",")[2] for line in lines[1:]] == ["run-1", "run-2", "run-3"]


def test_export_to_tensorboard(corpus, tmp_path, runs, capsys):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tiny_runs.train(tmp_path / "run", corpus)
    _told(capsys, "index", str(tmp_path))
    _told(capsys, "export", "--tensorboard", str(tmp_path / "board"))
    (folder,) = (tmp_path / "board").iterdir()
    events = EventAccumulator(str(folder)).Reload()
    curves = read_curves(tmp_path / "run")
    found = [(point.step, point.value) for point in events.Scalars("dev/slot_f1")]
    assert found == [
        (step, pytest.approx(value)) for step, value in zip(curves.scored, curves.scores["slot_f1"], strict=True)
    ]


# --- the browser


def test_the_browser_overlays_curves_and_opens_a_run(corpus, tmp_path, runs, capsys):
    results = [tiny_runs.train(tmp_path / name, corpus, seed=seed) for seed, name in enumerate(("first", "second"))]
    _told(capsys, "index", str(tmp_path))
    browser = RunBrowser("kind=training")
    assert len(browser.runs.options) == len(browser.chosen) == len(browser._axes.lines) == 2
    browser.curve.value = "slot_f1"
    found = {line.get_label().split()[1]: list(line.get_ydata()) for line in browser._axes.lines}
    scores = {name: read_curves(tmp_path / name).scores["slot_f1"] for name in ("first", "second")}
    assert found == {name: [100 * value for value in values] for name, values in scores.items()}
    browser.conditions.value = "seed=1"
    assert [run.record.name for run in browser.chosen] == ["second"]
    assert tensors_digest(browser.checkpoint().parameters) == results[1].parameters_sha256


@pytest.mark.parametrize("name", ["a$x^$b", "_hidden", "\x1b[31m\n\x00", ""])
def test_the_browser_shows_runs_of_any_name(name, corpus, tmp_path, runs):
    for number, one in enumerate((name, "plain")):
        tiny_runs.train(tmp_path / str(number), corpus)
        record = read_run(tmp_path / str(number))
        record.id, record.name = f"_{number}", one
        record.write(tmp_path / str(number))
        index_run(record, tmp_path / str(number))
    browser = RunBrowser("kind=training")
    assert browser.message == "" and len(browser._axes.lines) == 2
    browser._axes.figure.canvas.draw()
    shown = [text.get_text() for text in browser._axes.get_legend().get_texts()]
    assert len(shown) == 2 and any(text.endswith("plain") for text in shown)
    for text in browser._axes.get_legend().get_texts():
        drawn, is_formula = text._preprocess_math(text.get_text())
        assert not is_formula and drawn.strip() in [f"_0 {printable(name)}".strip(), "_1 plain"]


def test_the_browser_beside_a_run_that_is_none(corpus, tmp_path, runs, capsys):
    for name in ("sound", "forged"):
        tiny_runs.train(tmp_path / name, corpus)
    path = tmp_path / "forged" / RUN_FILE
    values = json.loads(path.read_text())
    del values["sha256"]
    figure = {"value": "x", "unit": "1", "provenance": "measured"}
    path.write_text(json.dumps(values | {"figures": {"dev.frame_accuracy": figure}}))
    (tmp_path / "forged" / METRICS).write_text(json.dumps({"samples": 3, "dev": {"slot_f1": "x"}}))
    _told(capsys, "index", str(tmp_path))
    browser = RunBrowser("kind=training")
    assert "sound" in {run.record.name for run in browser.chosen} and len(browser._axes.lines) == 1


def test_the_browser_names_what_is_left_out_and_shows_copies(corpus, tmp_path, runs, capsys):
    tiny_runs.train(tmp_path / "first", corpus)
    shutil.copytree(tmp_path / "first", tmp_path / "copy")
    lines = (tmp_path / "copy" / METRICS).read_text().splitlines(keepends=True)
    (tmp_path / "copy" / METRICS).write_text("".join([lines[0], lines[1].replace("loss", "lost"), *lines[2:]]))
    _told(capsys, "index", str(tmp_path))
    browser = RunBrowser("kind=training")
    assert len(browser.runs.options) == len(browser._axes.lines) == 2
    assert "line 2 of metrics.jsonl is left out" in browser.message


def test_the_browser_shows_this_checkouts_runs_unless_asked_for_more(tmp_path, monkeypatch):
    monkeypatch.delenv("BTTLAB_RUNS")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for number, checkout in ((1, "theirs"), (2, "ours")):
        monkeypatch.setattr(index_module, "ROOT", Path(checkout))
        folder = tmp_path / str(number)
        folder.mkdir()
        RunIndex().add(_record(number), folder)
    assert _names(RunIndex()) == ["run-2"]
    browser = RunBrowser("linear_rank>0")
    assert [run.record.name for run in browser.chosen] == ["run-2"]
    browser.everywhere.value = True
    assert {run.record.name for run in browser._found.values()} == {"run-1", "run-2"}
    browser.conditions.value = "learning_rate=0.1"
    assert [run.record.name for run in browser.chosen] == ["run-1"]
