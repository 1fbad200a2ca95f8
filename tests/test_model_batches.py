"""Batches of utterances of equal length: their cut, losses, gradients and predictions."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bttlab.data import Vocabulary, encode, load_corpus
from bttlab.model import Transformer, batch_losses, equal_length_batches, loss
from tiny_runs import CONFIG

DENSE = replace(CONFIG, format="dense")


@pytest.fixture(scope="module")
def samples(corpus):
    corpus = load_corpus(corpus)
    vocabulary = Vocabulary.from_sentences(corpus.train.words, CONFIG.vocabulary_size)
    return encode(corpus.train, vocabulary, corpus, CONFIG)


def _cut(order, lengths, seed):
    return equal_length_batches(order, lengths, 4, np.random.default_rng(seed))


def test_batches_hold_each_utterance_once_and_one_length_each():
    random = np.random.default_rng(0)
    lengths, order = random.integers(3, 7, 60), random.permutation(60)[:50]
    found = _cut(order, lengths, 1)
    assert sorted(np.concatenate(found)) == sorted(order)
    assert all(len(batch) <= 4 and len(set(lengths[batch])) == 1 for batch in found)
    assert len(found) == sum(-(-np.sum(lengths[order] == length) // 4) for length in np.unique(lengths[order]))
    assert [list(batch) for batch in found] != [list(batch) for batch in _cut(order, lengths, 2)]


@pytest.mark.parametrize("config", [CONFIG, DENSE], ids=["tensor", "dense"])
def test_losses_and_gradients_are_those_of_the_utterances(samples, config):
    batch = equal_length_batches(np.arange(len(samples)), samples.lengths, 3, np.random.default_rng(0))[0]
    part = samples[batch]
    model = Transformer(config, seed=1)
    losses = batch_losses(model, part, 0.1)
    losses.mean().backward()
    got = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    for i in range(len(part)):
        tokens, slots = (torch.from_numpy(array[i].astype(np.int64)) for array in (part.tokens, part.slots))
        n = int(part.lengths[i])
        value = loss(*model(tokens[:n]), torch.tensor(int(part.intents[i])), slots[1:n], 0.1)
        assert losses[i].item() == pytest.approx(value.item(), rel=1e-5)
        (value / len(part)).backward()
    for name, parameter in model.named_parameters():
        assert torch.allclose(got[name], parameter.grad, rtol=1e-4, atol=1e-7), name
