"""INT8 and shared encoders: what layers multiply, and whose parameters they have."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bttlab.data import load_corpus
from bttlab_methods import Batch, Setting, Training, export, parse, run_methods
from bttlab_methods.library import low_precision
from bttlab_methods.library.low_precision import multiply, quantise
from bttlab_methods.run import measure_memory
from tiny_runs import CONFIG


@pytest.fixture(scope="module")
def setting(corpus):
    return Setting(load_corpus(corpus), replace(CONFIG, format="dense", encoders=2), samples=150, batch=4)


def test_int8_products_are_those_of_integers_times_their_scales():
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(64, 32), torch.randn(10, 64) * torch.logspace(-3, 3, 10)[:, None]
    steps_x, steps_w = (127 / t for t in (x.abs().amax(1, keepdim=True), layer.weight.abs().max()))
    product = (x * steps_x).round().double() @ (layer.weight * steps_w).round().double().t()
    expected = (product / (steps_x * steps_w)).float() + layer.bias
    torch.testing.assert_close(multiply(layer, x), expected, rtol=1e-4, atol=1e-5)
    errors = (multiply(layer, x) - layer(x)).norm(dim=1) / (layer(x) - layer.bias).norm(dim=1)
    assert 1e-4 < errors.min() and errors.max() < 0.03  # of small tokens as of large ones


@pytest.mark.parametrize("integers", [True, False])
def test_int8_products_are_exact_on_every_processor(integers, monkeypatch):
    """Also where oneDNN's integer kernels saturate: `integers` is what `multiplies_integers` says."""
    if integers and not low_precision.multiplies_integers():
        integers = False
    monkeypatch.setattr(low_precision, "multiplies_integers", lambda: integers)
    for inner in (64, 768, 3072):
        a, b = (torch.randint(-127, 128, shape, dtype=torch.int8) for shape in ((5, inner), (inner, 7)))
        a[0], b[:, 0] = 127, 127
        found, wanted = low_precision.product(a, b), a.long() @ b.long()
        assert torch.equal(found.float(), wanted.float())


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


TENSOR = "tensor:rank=3,embedding_rank=3"


def most(training, category: str) -> int:
    return measure_memory(training)["most"][category]["value"]


@pytest.mark.parametrize("model", ["", TENSOR + "+"])
def test_shared_encoders_are_one_whose_gradient_is_the_sum_of_all_uses(setting, model):
    shared = Training(setting, parse(model + "shared-encoders"))
    apart = Training(setting, parse(model.rstrip("+") or "dense"))
    first, second = apart.model.encoders
    second.load_state_dict(first.state_dict())
    batch = Batch(apart.samples[:4])
    for training in (shared, apart):
        training.backward(training.forward(batch)[0])
    ones, twos, sums = (encoder.parameters() for encoder in (first, second, shared.model.encoders[1]))
    for one, two, both in zip(ones, twos, sums, strict=True):
        torch.testing.assert_close(both.grad, one.grad + two.grad, rtol=1e-4, atol=1e-6)
    size = sum(parameter.numel() for parameter in first.parameters())
    assert sum(map(torch.numel, shared.trained)) == sum(map(torch.numel, apart.trained)) - size


def test_shared_encoders_take_the_memory_of_one_and_export_as_all(setting):
    shared, apart = (Training(setting, parse(text)) for text in ("shared-encoders", "dense"))
    size = 4 * sum(parameter.numel() for parameter in apart.model.encoders[0].parameters())
    for training in (shared, apart):
        training.step(Batch(training.samples[:4]))
    for category, times in (("parameters", 1), ("gradients", 1), ("optimizer_state", 2)):
        assert most(apart, category) - most(shared, category) == pytest.approx(times * size, abs=200)  # and step counts
    config, parameters = export(shared)
    assert config.encoders == 2 and set(parameters) == set(config.parameter_shapes())
    name = "encoders.{}.first.weight"
    assert np.array_equal(parameters[name.format(0)], parameters[name.format(1)])
    result = run_methods(replace(setting, samples=60), parse(TENSOR + "+shared-encoders+rematerialisation"), splits=())
    assert result.facts == {"uses_of_the_encoder": 2}
