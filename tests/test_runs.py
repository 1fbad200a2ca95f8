"""Runs can be found again: run.json beside each run, the table of them, and the command that asks it."""

import csv
import json
import shutil
import subprocess

import numpy as np
import pandas as pd
import pytest

import tiny_runs
from bttlab.cli import main
from bttlab.data import load_corpus
from bttlab.lab import RunBrowser
from bttlab.model import LEARNING_RATES, initial_parameters
from bttlab.runs import (
    Callback,
    CheckpointStore,
    RunRecord,
    add_to_index,
    find_run,
    read_run,
    remember,
    runs_table,
    tensors_digest,
)
from bttlab.runs.folder import run_lock
from bttlab.runs.metrics import METRICS_FILE, MOST_LINES, read_curves
from bttlab.runs.record import RUN_FILE, git_state
from bttlab.runs.table import where
from bttlab.util.errors import BttlabError
from bttlab.util.quantities import measured
from command_line import refused, run_json
from rounding import rounding

from conftest import ROOT

OLD = ROOT / "tests" / "data"
OLD_SHA256 = "32507faeba9dea54682473b849838a8c0a3976fff98a5bc8711152f67a57be35"  # of both runs' parameters


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A folder of runs for this test alone."""
    monkeypatch.setenv("BTTLAB_RUNS", str(tmp_path / "user"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def three(runs):
    for number in (1, 2, 3):
        values = {"linear_rank": 4 * number, "learning_rate": 10.0**-number, "data": "atis", "modes": [2, number]}
        values |= {"is_odd": number % 2 == 1, "recipe": None}
        folder = runs / f"run-{number}"
        folder.mkdir()
        figures = {"dev.frame_accuracy": measured(number / 10, "1", "by hand")}
        begun, id = f"2026-01-0{number}T00:00:00+00:00", f"{number:04d}abcd"
        corpus = {"name": "atis", "sha256": str(number // 3) * 64}
        record = RunRecord(
            "training", f"run-{number}", values, "a device", id, "complete", "", begun, corpus=corpus, figures=figures
        )
        record.write(folder)
        add_to_index(folder)
    return runs


def _names(condition):
    return list(where(runs_table(), condition)["name"])


# --- what a training leaves


def test_a_training_leaves_its_record_from_the_beginning(corpus, tmp_path):
    seen = []

    class Watch(Callback):
        def on_record(self, record):
            seen.append(record.status)

    run = tiny_runs.start_run(tmp_path / "run", tiny_runs.settings(corpus), tiny_runs.load_corpus(corpus))
    trainer = tiny_runs.ReferenceTrainer(tiny_runs.CONFIG)
    result = run.train(trainer, tiny_runs.DEVICE, callback=Watch())
    assert seen == ["running", "complete"]
    record = read_run(tmp_path / "run")
    assert record.configuration["linear_rank"] == 2 and record.configuration["optimizer"] == "sgd"
    assert record.figures["dev.slot_f1"]["value"] == result.epoch["dev"]["slot_f1"]
    assert record.figures["test.slot_f1"]["value"] == result.test["slot_f1"]
    assert record.figures["samples"]["value"] == 3 * tiny_runs.SIZES["train"]
    row = runs_table([tmp_path]).iloc[0]
    assert row["trained_samples"] == 3 * tiny_runs.SIZES["train"] and pd.isna(row["samples"])
    for name in ("seconds", "samples_per_second"):
        assert result.epoch[name]["provenance"] == "measured" and "perf_counter" in result.epoch[name]["how"]
    assert all(figure["provenance"] == "measured" and figure["how"] for figure in record.figures.values())
    assert (tmp_path / "run" / record.checkpoint).is_file() and record.versions["torch"]
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700


def test_a_run_that_died_is_interrupted(corpus, tmp_path):
    tiny_runs.train(tmp_path / "run", corpus, epochs=1)
    record = read_run(tmp_path / "run")
    record.status = "running"
    record.write(tmp_path / "run")
    assert read_run(tmp_path / "run").status == "interrupted"
    with run_lock(tmp_path / "run"):
        assert read_run(tmp_path / "run").status == "running"


@pytest.mark.parametrize("version", ["0_1", "0_2"])
def test_a_run_of_an_older_version_opens_and_goes_on(version, runs, capsys):
    folder = shutil.copytree(OLD / f"runs_{version}", runs / "run")
    record, curves = read_run(folder), read_curves(folder)
    assert record.status == "complete" and record.figures["samples"]["value"] == 48
    assert curves.faults == [] and curves.scored == [24, 48] and len(curves.losses) == 48
    tiny_runs.write_corpus(runs / "corpus")
    run = tiny_runs.resume_run(folder)
    assert run.finished().parameters_sha256 == OLD_SHA256
    tiny_runs.resume(folder, epochs=3)
    assert read_run(folder).id == record.id and len(read_curves(folder).losses) == 72
    assert main(["runs", "show", str(folder)]) == 0
    assert "dev.slot_f1" in capsys.readouterr().out


def test_training_is_that_of_older_versions(runs):
    """Up to the rounding of PyTorch's kernels, which depend on the processor; initial parameters are the same bits."""
    corpus = tiny_runs.write_corpus(runs / "corpus")
    tiny_runs.train(runs / "again", corpus, epochs=2)
    old, new = (CheckpointStore(folder).load()[0].parameters for folder in (OLD / "runs_0_2", runs / "again"))
    first = initial_parameters(tiny_runs.CONFIG, seed=0)
    rates = 2 * tiny_runs.SIZES["train"] * 10 * LEARNING_RATES["sgd"]  # their sum
    tolerance = rates * rounding(tiny_runs.CONFIG)
    assert old.keys() == new.keys() == first.keys()
    for name, parameter in new.items():
        assert np.abs(parameter - old[name]).max() < tolerance, name
    assert max(np.abs(old[name] - first[name]).max() for name in old) > 1000 * tolerance


# --- curves


def test_curves_of_thousands_of_epochs_have_one_loss_each(tmp_path):
    line = {"event": "epoch", "samples": 10, "mean_loss": 2.5, "losses": [4.0, 1.0]}
    for epochs, samples, losses in ((MOST_LINES, [5, 10], [4.0, 1.0]), (MOST_LINES + 1, [10, 20], [2.5, 2.5])):
        (tmp_path / METRICS_FILE).write_text(epochs * f"{json.dumps(line)}\n")
        curves = read_curves(tmp_path)
        assert curves.samples[:2] == samples and curves.losses[:2] == losses and curves.samples[-1] == 10 * epochs


# --- the table


def test_conditions_choose_runs(three):
    assert _names("linear_rank > 0") == ["run-3", "run-2", "run-1"]
    assert _names("linear_rank == 8") == ["run-2"]
    assert _names("learning_rate <= 0.01 and dev.frame_accuracy > 0.2") == ["run-3"]
    assert _names("name != 'run-1' and `dev.frame_accuracy` < 0.3") == ["run-2"]
    assert _names("id == '0001abcd'") == ["run-1"]
    assert _names("begun > '2026-01-02' and dev.frame_accuracy.notna()") == ["run-3", "run-2"]
    assert _names("begun >= '2026-01-03T'") == _names("'2026-01-03T' <= begun") == ["run-3"]
    assert _names("linear_rank in [4, -1] | name == 'run-3' & is_odd == True") == ["run-3", "run-1"]
    assert _names("recipe.isna() and is_odd != True") == ["run-2"]
    assert _names("modes.astype('str') == '[2, 1]'") == ["run-1"]


def test_whole_numbers_of_63_bits_are_exact_beside_runs_without_them(three, capsys):
    seeds = {"run-1": 2**53 + 1, "run-2": 2**63 - 1}
    for name, seed in seeds.items():
        record = read_run(three / name)
        record.configuration |= {"seed": seed, "odd": 2**70}
        record.write(three / name)
    assert runs_table().set_index("name")["seed"].dropna().to_dict() == seeds
    assert _names(f"seed == {2**53 + 1}") == ["run-1"] and _names(f"seed == {2**53}") == []
    run_json(capsys, "runs", "export", "--csv", three / "runs.csv")
    rows = list(csv.DictReader((three / "runs.csv").read_text().splitlines()))
    assert {row["name"]: row["seed"] for row in rows} == {name: str(seed) for name, seed in seeds.items()} | {
        "run-3": ""
    }


def test_a_key_in_a_text_is_text(three):
    record = read_run(three / "run-2")
    record.name = "it's dev.frame_accuracy"
    record.write(three / "run-2")
    assert _names('name == "it\'s dev.frame_accuracy" and dev.frame_accuracy < 0.3') == [record.name]
    assert _names(r"name == 'it\'s dev.frame_accuracy'") == [record.name]


@pytest.mark.parametrize(
    "condition, message",
    [
        ("linear_rnak == 8", "do you mean linear_rank"),
        ("linear_rank = 8", "give a condition such as"),
        ("name > 3", "name is a text, and is compared with 3"),
        ("linear_rank", "is no condition"),
        ("name == run", "a text needs quotes: 'run'"),
        ("linear_rank == '8'", "linear_rank is not a text, and is compared with '8'; write it without quotes, as 12"),
        ("name != 'run-1' and dev.frame_accuracy != '0.1'", "dev.frame_accuracy is not a text"),
        ("`dev.frame_accuracy` == '0.1' | linear_rank == 8", "dev.frame_accuracy is not a text"),
        ("'8' == linear_rank", "linear_rank is not a text"),
        ("linear_rank in [8, '12']", "linear_rank is not a text, and is compared with '12'"),
        ("is_odd == 'true'", "is_odd is not a text, and is compared with 'true'; write it without quotes, as True"),
        ("id == 2", "id is a text, and is compared with 2; write '2', in quotes"),
        ("name not in (1, 2)", "name is a text, and is compared with 1"),
        ("recipe == None", r"recipe is compared with None, which no run meets; write recipe.isna\(\)"),
        ("modes == [2, 1]", "modes has lists"),
        ("modes == '[2, 1]'", "modes has lists"),
    ],
)
def test_a_wrong_condition_is_one_sentence(three, condition, message):
    with pytest.raises(BttlabError, match=message) as raised:
        where(runs_table(), condition)
    assert "\n" not in str(raised.value)


def test_a_run_is_found_by_id_name_and_folder(three):
    for name in ("0002abcd", "0002", "run-2", str(three / "run-2")):
        assert find_run(name) == three / "run-2"
    for name, message in (("0004", "no run"), ("000", "several"), ("", "no run")):
        with pytest.raises(BttlabError, match=message):
            find_run(name)
    with pytest.raises(TypeError, match="give a list of folders"):
        runs_table(str(three))


def test_an_odd_key_or_a_damaged_record_hides_no_other_run(three, capsys):
    values = json.loads((three / "run-1" / RUN_FILE).read_text())
    values["configuration"] |= {'it\'s "odd"\n': {"a": [1]}, "linear_rank": "twelve", "name": 3}
    (three / "run-1" / RUN_FILE).write_text(json.dumps(values))
    for number, text in enumerate(["{}", "[1]", "x", json.dumps(values | {"figures": {"loss": {"value": "x"}}})]):
        (three / "user" / str(number)).mkdir(parents=True)
        (three / "user" / str(number) / RUN_FILE).write_text(text)
    compared = run_json(capsys, "runs", "compare", "run-1", "run-2", "run-3")
    assert {run["name"] for run in compared["runs"]} == {"run-1", "run-2", "run-3"}
    assert main(["runs", "list"]) == 0
    shown = capsys.readouterr()
    assert shown.err.count("left out") == 4 and shown.out.count("run-") == 3
    assert main(["runs", "list", "--where", "learning_rate < 1"]) == 0


# --- the command


def test_list_show_and_compare(three, capsys):
    listed = run_json(capsys, "runs", "list", "--where", "linear_rank > 4", "--limit", "1")
    assert listed["total"] == 2 and [run["name"] for run in listed["runs"]] == ["run-3"]
    assert (listed["runs"][0]["linear_rank"], listed["runs"][0]["encoders"]) == (12, None)
    shown = run_json(capsys, "runs", "show", "run-2")
    assert shown["figures"]["dev.frame_accuracy"] == measured(0.2, "1", "by hand")
    compared = run_json(capsys, "runs", "compare", "run-1", "0003")
    assert compared["differing"] == ["corpus", "linear_rank", "learning_rate", "modes"]
    assert {run["name"] for run in compared["runs"]} == {"run-1", "run-3"}
    listed = run_json(capsys, "runs", "list", "--where", "linear_rank > 4", "--where", "linear_rank < 12")
    assert [run["name"] for run in listed["runs"]] == ["run-2"]
    listed = run_json(capsys, "runs", "list", "--sort", "dev.frame_accuracy", "--ascending")
    assert [run["name"] for run in listed["runs"]] == ["run-1", "run-2", "run-3"]
    shutil.copytree(three / "run-3", three / "run-2" / "below")
    compared = run_json(capsys, "runs", "compare", "run-1", str(three / "run-2"))
    assert {run["name"] for run in compared["runs"]} == {"run-1", "run-2"}
    shutil.rmtree(three / "run-2" / "below")
    compared = run_json(capsys, "runs", "compare", "run-1", "run-2", "run-3", "--limit", 2)
    assert len(compared["runs"]) == 2
    assert main(["runs", "list", "--where", "linear_rank > 12"]) == 0
    assert "no run meets --where" in capsys.readouterr().out
    for arguments in (["list"], ["show", "run-1"], ["compare"]):
        assert main(["runs", *arguments]) == 0
        assert "run-1" in capsys.readouterr().out


def test_runs_that_have_not_ended_are_told_from_others_when_compared(three, capsys):
    record = read_run(three / "run-3")
    record.end("pruned", "loss 3 after epoch 1 is worse than the median of earlier trials")
    record.write(three / "run-3")
    compared = run_json(capsys, "runs", "compare", "run-2", "run-3")["runs"]
    assert {run["name"]: run["status"] for run in compared} == {"run-2": "complete", "run-3": "pruned"}
    assert main(["runs", "compare", "run-2", "run-3"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "run-3" in line]
    assert line.split()[:3] == ["0003abcd", "run-3", "pruned"]


def test_export_to_csv(three, capsys):
    run_json(capsys, "runs", "export", "--csv", three / "runs.csv", "--ascending")
    rows = list(csv.DictReader((three / "runs.csv").read_text().splitlines()))
    assert [row["name"] for row in rows] == ["run-1", "run-2", "run-3"]
    assert [row["linear_rank"] for row in rows] == ["4", "8", "12"]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("--csv x.csv --limit -1", "--limit -1: give how many"),
        ("--csv x.csv --best", "--best chooses the epoch of --weights"),
        ("--weights x.pt", "give a FILE.safetensors"),
        ("--weights checkpoint.safetensors", "would replace a run's checkpoint"),
    ],
)
def test_what_is_not_exported(three, capsys, arguments, message):
    (three / "checkpoint.safetensors").write_text("a run's")
    assert message in refused(capsys, "runs", "export", "run-1", *arguments.split())
    assert (three / "checkpoint.safetensors").read_text() == "a run's"


def test_weights_predictions_and_the_browser_say_that_the_last_checkpoint_is_damaged(corpus, runs, capsys):
    tiny_runs.train(runs / "runs" / "run", corpus)
    browser = RunBrowser()
    browser.checkpoint()
    assert browser.message == ""
    (runs / "runs" / "run" / "checkpoint.safetensors").write_bytes(b"torn")
    assert "going back to the one before" in tiny_runs.resume_run(runs / "runs" / "run").notes[0]
    assert main(["runs", "export", "run", "--weights", str(runs / "dense.safetensors")]) == 0
    assert "going back to the one before" in capsys.readouterr().err
    assert main(["predict", "fli please to a x", "--run", str(runs / "runs" / "run")]) == 0
    assert "going back to the one before" in capsys.readouterr().err
    before = CheckpointStore(runs / "runs" / "run").load()[0]
    assert tensors_digest(browser.checkpoint().parameters) == tensors_digest(before.parameters)
    assert "going back to the one before" in browser.message


# --- the browser


def test_the_browser_refuses_a_run_of_another_corpus(corpus, runs, tmp_path):
    """Its predictions would be decoded by other labels, and scored without a word."""
    tiny_runs.train(runs / "runs" / "run", corpus)
    browser = RunBrowser()
    assert browser.checkpoint(load_corpus(corpus)).corpus.is_of(load_corpus(corpus))
    other = load_corpus(tiny_runs.write_corpus(tmp_path / "other", seed=1))
    with pytest.raises(BttlabError, match=r"was trained on the corpus .* select a run of other"):
        browser.checkpoint(other)


@pytest.mark.long
def test_the_browser_overlays_curves_and_opens_a_run(corpus, runs):
    folder = runs / "runs"
    results = [tiny_runs.train(folder / name, corpus, seed=seed) for seed, name in enumerate(("first", "second"))]
    browser = RunBrowser()
    assert len(browser.runs.options) == len(browser.chosen) == len(browser._axes.lines) == 2
    browser.curve.value = "slot_f1"
    found = {line.get_label().split()[1]: list(line.get_ydata()) for line in browser._axes.lines}
    scores = {name: read_curves(folder / name).scores["slot_f1"] for name in ("first", "second")}
    assert found == {name: [100 * value for value in values] for name, values in scores.items()}
    browser.condition.value = "seed == 1"
    assert [run["name"] for run in browser.chosen] == ["second"]
    tiny_runs.train(folder / "third", corpus, seed=1)
    browser.refresh()
    assert len(browser.runs.options) == 1
    browser.search_again()
    assert len(browser.runs.options) == 2 and [run["name"] for run in browser.chosen] == ["second"]
    browser.condition.value = "seed == '"
    assert browser.message.count("condition ") == 2 and "--where" not in browser.message
    browser.condition.value = "seed == 1"
    assert tensors_digest(browser.checkpoint().parameters) == results[1].parameters_sha256


def test_a_record_names_the_commit_of_the_checkout():
    found = subprocess.run(
        [shutil.which("git") or "false", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True
    )
    state = git_state()
    assert (state and state.commit) == (None if found.returncode else found.stdout.strip())


def test_the_index_by_its_name_of_before(tmp_path, monkeypatch):
    monkeypatch.setenv("BTTLAB_RUNS", str(tmp_path))
    with pytest.warns(FutureWarning, match="add_to_index"):
        remember(tmp_path / "elsewhere")
    assert (tmp_path / "folders.txt").read_text() == f"{tmp_path / 'elsewhere'}\n"


def test_segments_of_version_0_1_are_read(tmp_path):
    lines = [{"event": name, "samples": 4, "mean_loss": 2.0} for name in ("stretch", "segment")]
    (tmp_path / METRICS_FILE).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    curves = read_curves(tmp_path)
    assert curves.samples == [4, 8] and curves.losses == [2, 2] and curves.faults == []
