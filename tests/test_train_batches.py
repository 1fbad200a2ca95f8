"""Training by a recipe in batches: the command."""

import json
from dataclasses import replace

import batches
import pytest

from bttlab.data import load_corpus
from tiny_runs import CONFIG, SIZES, write_corpus

DENSE = replace(CONFIG, format="dense")
RECIPE = 'epochs = 2\nlearning_rate = 1e-2\n[optimizer]\nname = "{}"\n'


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return load_corpus(write_corpus(tmp_path_factory.mktemp("data") / "tiny"))


def test_command_records_the_curve_and_the_test(tmp_path, corpus, monkeypatch):
    monkeypatch.setattr(batches, "ModelConfig", lambda encoders, format: DENSE)
    recipe = tmp_path / "mine.toml"
    recipe.write_text(RECIPE.format("adamw"))
    arguments = ["--data", str(corpus.folder), "--recipe", str(recipe), "--batch", "5", "--record"]
    assert batches.main([*arguments, str(tmp_path / "a.json")]) == 0
    record = json.loads((tmp_path / "a.json").read_text())
    assert [epoch["epoch"] for epoch in record["epochs"]] == [1, 2]
    assert record["epochs"][1]["dev"]["mean_loss"] < record["epochs"][0]["dev"]["mean_loss"]
    assert record["test"]["utterances"] == SIZES["test"] and record["format"] == "dense"
