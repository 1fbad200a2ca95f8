"""Methods that save memory, or show what hardware saves: each keeps what it promises."""

from dataclasses import replace

import pytest
import torch

from bttlab.data import load_corpus
from bttlab_methods import Batch, Setting, Training, parse
from bttlab_methods.library.encoders import pattern
from bttlab_methods.library.memory import AdamW8bit, CompressedActivations
from bttlab_methods.run import measure_memory
from tiny_runs import CONFIG

# Larger than the other tests', so that activations count beside what every step holds.
WIDE = {
    "encoders": 2,
    "hidden_size": 64,
    "linear_out_modes": (4, 4, 4),
    "linear_in_modes": (4, 4, 4),
    "embedding_column_modes": (4, 4, 4),
}


@pytest.fixture(scope="module")
def setting(corpus):
    return Setting(load_corpus(corpus), replace(CONFIG, format="dense", **WIDE), samples=40, batch=8)


def gradients(setting, methods: str) -> list[torch.Tensor]:
    training = Training(setting, parse(methods.strip("+")))
    value, _ = training.forward(Batch(training.samples[:8]))
    training.backward(value)
    return [parameter.grad for parameter in training.model.parameters()]


def errors(exact, other) -> list[float]:
    """Relative errors of the matrices' and cores' gradients: that of the keys' biases is 0 but for rounding."""
    return [((a - b).norm() / a.norm()).item() for a, b in zip(exact, other, strict=True) if a.ndim > 1]


def most(setting, methods: str) -> dict[str, int]:
    training = Training(setting, parse(methods))
    training.step(Batch(training.samples[:8]))
    return {category: figure["value"] for category, figure in measure_memory(training)["most"].items()}


@pytest.mark.parametrize("together", ["", "tensor+"])
def test_gradients_stay_the_same_to_the_bit(setting, together):
    kept = gradients(setting, together or "dense")
    for method in ("rematerialisation", "activation-offloading"):
        assert all(map(torch.equal, kept, gradients(setting, together + method))), method


@pytest.mark.parametrize("together", ["", "tensor+"])
def test_bf16_activations_are_half_as_wide_and_parameters_are_not(setting, together):
    training = Training(setting, parse(together + "bf16"))
    seen = []
    for encoder in training.model.encoders:
        encoder.first.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    training.step(Batch(training.samples[:8]))
    assert seen == [torch.bfloat16] * 2
    for parameter in training.model.parameters():
        assert parameter.dtype == parameter.grad.dtype == torch.float32


def test_bf16_gradients_of_cores_are_right_to_bf16s_rounding(setting):
    assert max(errors(gradients(setting, "tensor"), gradients(setting, "tensor+bf16"))) < 0.05


@pytest.mark.parametrize(
    ("method", "category", "part"),
    [
        ("rematerialisation", "activations", 0.5),
        ("compressed-activations", "activations", 0.45),
        ("8bit-optimizer", "optimizer_state", 0.3),
    ],
)
def test_a_method_takes_a_part_of_the_dense_models_memory(setting, method, category, part):
    assert most(setting, method)[category] < part * most(setting, "dense")[category]


def test_adamw_in_8_bits_goes_where_adamw_goes():
    generator = torch.Generator().manual_seed(0)
    target = torch.randn(64, 64, generator=generator)
    ways = []
    for kind in (torch.optim.AdamW, AdamW8bit):
        parameter = torch.nn.Parameter(torch.zeros(64, 64))
        optimizer = kind([parameter], lr=0.02)
        for _ in range(100):
            parameter.grad = parameter.detach() - target
            optimizer.step()
        ways.append(parameter.detach())
    assert (ways[0] - ways[1]).norm() < 0.03 * (ways[0]).norm()


def test_compressed_activations_give_the_right_gradient_on_average(setting):
    training = Training(setting, [CompressedActivations(block=64)])
    layer, x, dy = torch.nn.Linear(64, 32), torch.randn(32, 64), torch.randn(32, 32)
    found = []
    for _ in range(400):
        layer.weight.grad = None
        with training.methods[0].around_forward(training):
            y = layer(x)
        y.backward(dy)
        found.append(layer.weight.grad)
    exact, found = dy.t() @ x, torch.stack(found)
    spread = found.std(0)
    assert (found[0] != exact).any() and spread.max() > 0
    assert ((found.mean(0) - exact).abs() / (spread / 20 + 1e-6)).mean() < 1  # standard errors; 0.8 if it is normal


def test_a_token_outside_the_window_has_no_influence(setting):
    training = Training(setting, parse("sparse-attention:window=1"))
    encoder = training.model.encoders[0]
    x = torch.randn(1, 8, 64)
    other = x.clone()
    other[0, 5] += 1
    changed = (encoder(x) - encoder(other)).abs().amax((0, 2)) > 0
    assert changed.tolist() == [True, False, False, False, True, True, True, False]
    assert pattern(8, 1).sum() == 8 + 2 * 7 + 2 * 6
