"""INT8 training: products of integers, and gradients that are right on average."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bttlab.data import load_corpus
from bttlab_methods import Batch, MethodError, Setting, Training, parse
from bttlab_methods.library.low_precision import multiply, quantise
from tiny_runs import CONFIG, write_corpus


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    corpus = load_corpus(write_corpus(tmp_path_factory.mktemp("data") / "tiny"))
    return Setting(corpus, replace(CONFIG, format="dense", encoders=2), samples=150, batch=4)


def test_int8_products_are_those_of_integers_times_their_scales():
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(64, 32), torch.randn(10, 64) * torch.logspace(-3, 3, 10)[:, None]
    steps_x, steps_w = (127 / t for t in (x.abs().amax(1, keepdim=True), layer.weight.abs().max()))
    product = (x * steps_x).round().double() @ (layer.weight * steps_w).round().double().t()
    expected = (product / (steps_x * steps_w)).float() + layer.bias
    torch.testing.assert_close(multiply(layer, x), expected, rtol=1e-4, atol=1e-5)
    errors = (multiply(layer, x) - layer(x)).norm(dim=1) / (layer(x) - layer.bias).norm(dim=1)
    assert 1e-4 < errors.min() and errors.max() < 0.03  # of small tokens as of large ones


def test_int8_gradients_are_right_on_average_and_weights_get_theirs_in_full_precision():
    torch.manual_seed(0)
    layer, dy = torch.nn.Linear(32, 16), torch.randn(6, 16)
    found = []
    for _ in range(300):
        x = torch.randn(6, 32, generator=torch.Generator().manual_seed(1)).requires_grad_()
        layer.zero_grad()
        multiply(layer, x).backward(dy)
        found.append(x.grad)
    found = torch.stack(found)
    weights, scale = quantise(layer.weight.detach(), (0, 1))
    inputs, scales = quantise(x.detach(), 1)
    spread = found.std(0)
    assert spread.min() > 0
    assert ((found.mean(0) - dy @ (weights * scale)).abs() / (spread / 300**0.5)).mean() < 1  # standard errors
    torch.testing.assert_close(layer.weight.grad, dy.t() @ (inputs * scales), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(layer.bias.grad, dy.sum(0))


def test_int8_keeps_inputs_in_a_byte_a_value_and_still_learns(setting):
    training, losses, saved = Training(setting, parse("int8")), [], []
    training.run(lambda batch: losses.append(batch.mean()))
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])
    batch = Batch(training.samples[:8])
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor):
        training.forward(batch)
    integers = [tensor.shape for tensor in saved if tensor.dtype == torch.int8]
    assert len(integers) == 2 * (6 * 2 + 2)  # of each layer its inputs and its weight
    assert (16, 16) in integers and (8 * int(batch.samples.lengths[0]), 16) in integers
    assert all(parameter.dtype == torch.float32 for parameter in training.model.parameters())
    with pytest.raises(MethodError, match="tensor and int8 do not combine"):
        parse("tensor+int8")
