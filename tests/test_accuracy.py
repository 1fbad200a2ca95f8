"""The record of accuracies: what is collected, and that the page shows what the record holds."""

import json
from statistics import mean

import accuracy
import pytest

from tiny_runs import train, write_corpus


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


def test_an_unfinished_run_is_one_line(tmp_path, capsys):
    (tmp_path / "x.json").write_text("{}")
    assert accuracy.main(["collect", str(tmp_path / "x.json"), "--record", str(tmp_path / "r")]) == 2
    assert "has no scores of the test split" in capsys.readouterr().err and not (tmp_path / "r").exists()
