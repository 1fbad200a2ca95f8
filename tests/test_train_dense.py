"""Training in batches: the batches, their gradient, and the command."""

import json

import numpy as np
import pytest
import torch

from bttlab.data import Vocabulary, encode, load_corpus
from bttlab.model import ModelConfig, Transformer, loss
from bttlab.train import dense
from tiny_runs import CONFIG, SIZES, write_corpus

DENSE = ModelConfig(
    **{name: value for name, value in CONFIG.to_dict().items() if "modes" not in name} | {"format": "dense"}
)
RECIPE = 'epochs = 2\nlearning_rate = 1e-2\n[optimizer]\nname = "{}"\n'


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return load_corpus(write_corpus(tmp_path_factory.mktemp("data") / "tiny"))


def test_batches_hold_each_utterance_once_and_one_length_each():
    lengths = np.random.default_rng(0).integers(3, 7, 50)
    found = dense.batches(lengths, 4, 1, 2)
    assert sorted(np.concatenate(found)) == list(range(50))
    assert all(len(batch) <= 4 and len(set(lengths[batch])) == 1 for batch in found)
    assert len(found) == sum(-(-np.sum(lengths == length) // 4) for length in np.unique(lengths))
    assert [list(batch) for batch in found] != [list(batch) for batch in dense.batches(lengths, 4, 1, 3)]


def test_a_batchs_gradient_is_the_mean_of_its_utterances(corpus):
    vocabulary = Vocabulary.from_sentences(corpus.train.words, DENSE.vocabulary_size)
    samples = encode(corpus.train, vocabulary, corpus, DENSE)[:3]
    model = Transformer(DENSE, seed=1)
    dense.batch_loss(model, samples, 0.1).backward()
    got = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    for i in range(3):
        tokens, slots = (torch.from_numpy(a[i].astype(np.int64)) for a in (samples.tokens, samples.slots))
        n = int(samples.lengths[i])
        intent = torch.tensor(int(samples.intents[i]))
        (loss(*model(tokens[:n]), intent, slots[1:n], 0.1) / 3).backward()
    for name, parameter in model.named_parameters():
        assert torch.allclose(got[name], parameter.grad, rtol=1e-4, atol=1e-7), name


def test_command_records_the_curve_and_the_test(tmp_path, corpus, monkeypatch):
    monkeypatch.setattr(dense, "ModelConfig", lambda encoders, format: DENSE)
    recipe = tmp_path / "mine.toml"
    recipe.write_text(RECIPE.format("adamw"))
    arguments = ["--data", str(corpus.folder), "--recipe", str(recipe), "--batch", "5", "--record"]
    assert dense.main([*arguments, str(tmp_path / "a.json")]) == 0
    record = json.loads((tmp_path / "a.json").read_text())
    assert [epoch["epoch"] for epoch in record["epochs"]] == [1, 2]
    assert record["epochs"][1]["dev"]["mean_loss"] < record["epochs"][0]["dev"]["mean_loss"]
    assert record["test"]["utterances"] == SIZES["test"] and record["format"] == "dense"


def test_batches_are_for_adamw(tmp_path, corpus, capsys):
    recipe = tmp_path / "mine.toml"
    recipe.write_text(RECIPE.format("sgd"))
    assert dense.main(["--data", str(corpus.folder), "--recipe", str(recipe), "--record", str(tmp_path / "x")]) == 2
    assert capsys.readouterr().err == "optimizer is sgd: batches are trained with adamw\n"
