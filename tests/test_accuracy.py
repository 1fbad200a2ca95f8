"""The tools behind docs/accuracy.md: the record of accuracies and its page, folds, training in batches."""

import json
from dataclasses import replace
from statistics import mean

import accuracy
import batches
import folds
import pytest

from bttlab.baseline.receipt import details_of
from bttlab.data import load_corpus
from tiny_runs import CONFIG, SIZES, train, write_corpus


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
    values = details_of(target)
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


def test_each_fold_is_a_corpus_whose_templates_are_not_trained_on(tiny_airline, tmp_path):
    corpus = load_corpus(tiny_airline)
    assert folds.main([str(tiny_airline), str(tmp_path), "--parts", "3"]) == 0
    parts = [load_corpus(tmp_path / f"{corpus.name}{number}") for number in range(3)]
    held_out = sorted(" ".join(words) for part in parts for words in part.dev.words)
    assert held_out == sorted(" ".join(words) for words in corpus.train.words)
    for part in parts:
        assert len(part.train) + len(part.dev) == len(corpus.train) and abs(3 * len(part.dev) - len(corpus.train)) < 20
        assert part.test == corpus.dev and part.slot_labels == corpus.slot_labels
        trained, left = (
            {_template(*pair) for pair in zip(s.words, s.slots, strict=True)} for s in (part.train, part.dev)
        )
        assert not trained & left


def _template(words: list[str], tags: list[str]) -> str:
    """Utterances with values replaced by their types; chunks begin at their first tag."""
    shown = [
        word if tag == "O" else tag[2:].split(".")[-1] for word, tag in zip(words, tags, strict=True) if tag[:2] != "I-"
    ]
    return " ".join(shown)


@pytest.mark.parametrize("parts", ["1", "1000"])
def test_numbers_of_folds_that_cannot_be(parts, corpus, tmp_path, capsys):
    assert folds.main([str(corpus), str(tmp_path / "out"), "--parts", parts]) == 2
    said = capsys.readouterr().err
    assert f"--parts={parts}: use 2 to" in said and said.count("\n") == 1 and not (tmp_path / "out").exists()


def test_command_records_the_curve_and_the_test(tmp_path, corpus, monkeypatch):
    monkeypatch.setattr(batches, "ModelConfig", lambda encoders, format: replace(CONFIG, format="dense"))
    recipe = tmp_path / "mine.toml"
    recipe.write_text('epochs = 2\nlearning_rate = 1e-2\n[optimizer]\nname = "adamw"\n')
    arguments = ["--data", str(corpus), "--recipe", str(recipe), "--batch", "5", "--record"]
    assert batches.main([*arguments, str(tmp_path / "a.json")]) == 0
    record = json.loads((tmp_path / "a.json").read_text())
    assert [epoch["epoch"] for epoch in record["epochs"]] == [1, 2]
    assert record["epochs"][1]["dev"]["mean_loss"] < record["epochs"][0]["dev"]["mean_loss"]
    assert record["test"]["utterances"] == SIZES["test"] and record["format"] == "dense"
