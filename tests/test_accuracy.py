"""The record of accuracies: what is collected, and that the page shows what the record holds."""

import json
from statistics import mean, stdev

import accuracy
import pytest

from tiny_runs import train, write_corpus

from conftest import ROOT

RECORDS = sorted((ROOT / "data" / "accuracy").glob("*.json"))
LINKED = ("atis_ablation", "atis_batches", "atis_dense", "snips_folds")  # the page concludes from them without a table


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    corpus = write_corpus(folder / "tiny")
    results = [train(folder / f"s{seed}", corpus, "adamw", seed=seed, epochs=2) for seed in (0, 1)]
    dense = {"format": "dense", "encoders": 2, "recipe": "d", "seed": 3}
    score = {"intent_accuracy": 0.5, "slot_f1": 0.25, "frame_accuracy": 0.125}
    (folder / "d.json").write_text(json.dumps(dense | {"epochs": [{"epoch": 1, "dev": score}], "test": score}))
    target = folder / "record.json"
    sources = [str(folder / name) for name in ("s0", "s1", "d.json")]
    assert accuracy.main(["collect", *sources, "--record", str(target)]) == 0
    return results, target


def test_a_record_holds_the_runs_and_its_table_their_means(record, capsys):
    results, target = record
    values = json.loads(target.read_text())
    assert [run["seed"] for run in values["runs"]] == [0, 1, 3]
    assert [line["epoch"] for line in values["runs"][0]["epochs"]] == [1, 2]
    assert values["runs"][1]["test"] == results[1].test
    assert len({run["parameters"] for run in values["runs"][:2]}) == 2  # SHA-256 of each run's own
    assert accuracy.main(["table", str(target)]) == 0
    header, _, tensor, dense = (
        [cell.strip() for cell in line.strip("|\n").split("|")] for line in capsys.readouterr().out.splitlines()
    )
    assert tensor[:4] == ["1-ENC tensor", "`None`", "2", "0 1"]
    for name, column in (("frame_accuracy", "test frame"), ("intent_accuracy", "test intent")):
        wanted = 100 * mean(result.test[name] for result in results)
        assert tensor[header.index(column)].startswith(f"{wanted:.1f} ± ")
    assert dense == ["2-ENC dense", "`d`", "1", "3", "50.0", "25.0", "12.5", "50.0", "25.0", "12.5"]


def test_runs_of_folds_have_no_test_scores(record, tmp_path, capsys):
    target, source = tmp_path / "folds.json", record[1].parent / "s1"
    assert accuracy.main(["collect", str(source), "--record", str(target), "--held-out"]) == 0
    assert accuracy.main(["table", str(target)]) == 0
    header, _, row = capsys.readouterr().out.splitlines()
    assert header.count("held-out") == 3 and "test" not in header and header.count("|") == row.count("|")
    assert f"| {100 * record[0][1].epoch['dev']['slot_f1']:.1f} |" in row


def test_collecting_adds_runs_to_a_record_and_replaces_those_that_were_made_anew(record, tmp_path):
    target, source = tmp_path / "r.json", tmp_path / "d.json"
    target.write_text(record[1].read_text())
    run = json.loads(target.read_text())["runs"][2]
    for row in (run | {"seed": 4}, run | {"test": run["test"] | {"slot_f1": 0.75}}):
        source.write_text(json.dumps(row))
        assert accuracy.main(["collect", str(source), "--record", str(target)]) == 0
    rows = json.loads(target.read_text())["runs"]
    assert [(row["seed"], row["test"]["slot_f1"]) for row in rows[2:]] == [(3, 0.75), (4, 0.25)] and len(rows) == 4


def test_an_unfinished_run_is_one_line(tmp_path, capsys):
    (tmp_path / "x.json").write_text("{}")
    assert accuracy.main(["collect", str(tmp_path / "x.json"), "--record", str(tmp_path / "r")]) == 2
    assert "has no scores of the test split" in capsys.readouterr().err and not (tmp_path / "r").exists()


def test_the_page_shows_published_scores(capsys):
    path = ROOT / "data" / "published_scores.json"
    assert accuracy.main(["table", str(path)]) == 0
    found, page = capsys.readouterr().out, (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    ours = []
    for record, recipe in (("atis", "atis_long"), ("snips_decoded", "snips")):
        runs = json.loads((ROOT / "data" / "accuracy" / f"{record}.json").read_text())["runs"]
        tests = [run["test"] for run in runs if run["recipe"] == recipe and run["encoders"] == 2]
        ours.append(" / ".join(f"{100 * mean(test[name] for test in tests):.1f}" for name in accuracy.SCORES))
    assert found + f"| 2-ENC tensor, `atis_long`, `snips` (measured) | no | {ours[0]} | {ours[1]} |" in page


def test_the_recipe_shows_what_is_lost_without_each_part():
    record = json.loads((ROOT / "data" / "accuracy" / "atis_ablation.json").read_text(encoding="utf-8"))
    frames = {run["recipe"]: f"{100 * run['test']['frame_accuracy']:.1f}" for run in record["runs"]}
    lines = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8").splitlines()
    parts = ("slot substitution", "word classes", "word dropout", "label smoothing")
    shown = [next(line for line in lines if line.startswith(f"| {part}")).split(" | ")[-1] for part in parts]
    assert shown == [f"{frames[f'no_{part.split()[-1]}']} |" for part in parts]
    text = " ".join(lines)
    assert f"With all parts it is {frames['full']} %" in text and f"(beta2 0.999) it is {frames['plain']} %" in text


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_the_page_shows_what_the_record_holds(path):
    page = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    if path.stem in LINKED:
        assert f"(../data/accuracy/{path.name})" in page
    else:
        table = accuracy.table(json.loads(path.read_text(encoding="utf-8")))
        assert set(table.splitlines()) <= set(page.splitlines())


def test_the_readme_has_the_recorded_scores():
    runs = json.loads((ROOT / "data" / "accuracy" / "atis.json").read_text())["runs"]
    tests = [run["test"] for run in runs if (run["encoders"], run["recipe"]) == (2, "atis_long")]
    (row,) = (line for line in (ROOT / "README.md").read_text().splitlines() if "--recipe atis_long" in line)
    scores = [[100 * test[name] for test in tests] for name in ("intent_accuracy", "slot_f1")]
    cells = [f"{mean(values):.1f} ± {stdev(values):.1f} %" for values in scores]
    assert len(tests) == 10 and "ten seeds" in row and row.endswith(f"| {' | '.join(cells)} |")
