"""2:4 sparsity: two of four weights are used, and what is left out can come back."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bttlab.data import load_corpus
from bttlab_methods import MethodError, Setting, Training, parse
from bttlab_methods.layers import linear_layers
from bttlab_methods.library.sparsity import largest_two_of_four
from tiny_runs import CONFIG, write_corpus


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    corpus = load_corpus(write_corpus(tmp_path_factory.mktemp("data") / "tiny"))
    return Setting(corpus, replace(CONFIG, format="dense", encoders=2), samples=150, batch=4)


def test_two_of_four_weights_are_used_the_largest(setting):
    weight = torch.tensor([[1.0, -3, 2, 0.5, 0, 0, 0, 0], [4, 4, 4, 4, -1, -2, -3, -4]])
    mask = largest_two_of_four(weight)
    assert mask[0, :4].tolist() == [False, True, True, False] and mask[1, 4:].tolist() == [False, False, True, True]
    assert (mask.view(2, 2, 4).sum(2) == 2).all()
    training = Training(setting, parse("sparse-2-4"))
    layer, x = training.model.encoders[0].first, torch.randn(3, 16)
    expected = x @ (layer.weight * largest_two_of_four(layer.weight)).t() + layer.bias
    torch.testing.assert_close(layer(x), expected)
    assert (layer(x) - torch.nn.functional.linear(x, layer.weight, layer.bias)).abs().max() > 0.01


def test_what_is_left_out_gets_the_gradient_straight_through_and_shrinks(setting):
    training = Training(setting, parse("sparse-2-4:shrinking=0.5"))
    layer, x, dy = training.model.encoders[0].query, torch.randn(5, 16), torch.randn(5, 16)
    layer(x).backward(dy)
    out = ~largest_two_of_four(layer.weight)
    torch.testing.assert_close(layer.weight.grad, dy.t() @ x + 0.5 * layer.weight.detach() * out)
    assert out.sum() == out.numel() // 2


def test_a_sparse_model_learns_changes_its_pattern_and_ends_with_zeros_that_change_nothing(setting):
    training, losses = Training(setting, parse("sparse-2-4")), []
    training.run(lambda batch: losses.append(batch.mean()))
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])
    masks = (
        [largest_two_of_four(layer.weight) for layer in linear_layers(run.model)]
        for run in (Training(setting, parse("sparse-2-4")), training)
    )
    weight = training.model.encoders[0].first.weight
    assert not all(map(torch.equal, *masks)) and (weight != 0).all()
    tokens = torch.from_numpy(training.samples.tokens[:3, :5].astype("int64"))
    logits = training.model(tokens)
    facts = training.finish()
    assert all(map(torch.equal, logits, training.model(tokens)))
    assert ((weight.view(-1, 4) != 0).sum(1) == 2).all()
    assert facts["sparse_bytes"] == facts["dense_bytes"] * (1 / 2 + 1 / 32)
    with pytest.raises(MethodError, match="sparse-2-4 and lottery-ticket do not combine"):
        parse("sparse-2-4+lottery-ticket")
