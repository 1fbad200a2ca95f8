"""Methods that save memory, or show what hardware saves: each keeps what it promises."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from bttlab.data import load_corpus
from bttlab.methods import Batch, MethodError, Setting, Training, parse, run_methods
from bttlab.methods.library import plain_attention, sparse_attention
from bttlab.methods.library.compressed_activations import CompressedActivations, compress, decompress
from bttlab.methods.library.eight_bit_optimizer import AdamW8bit, dynamic_values
from bttlab.methods.library.low_precision_multiply import FORMATS, RoundedProducts, scaled_and_rounded
from bttlab.methods.memory import measure_memory
from bttlab.tensor import TTLinear
from tiny_runs import CONFIG, write_corpus

# Larger than the other tests', so that activations count beside what every step holds.
WIDE = {
    "encoders": 2,
    "hidden_size": 64,
    "linear_out_modes": (4, 4, 4),
    "linear_in_modes": (4, 4, 4),
    "embedding_column_modes": (4, 4, 4),
}


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    corpus = load_corpus(write_corpus(tmp_path_factory.mktemp("data") / "tiny"))
    return Setting(corpus, replace(CONFIG, format="dense", **WIDE), samples=40, batch=8)


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
@pytest.mark.parametrize("name", ["rematerialisation", "offloading"])
def test_gradients_stay_the_same_to_the_bit(setting, together, name):
    kept, other = gradients(setting, together or "dense"), gradients(setting, together + name)
    assert all(map(torch.equal, kept, other))


def test_rematerialisation_keeps_fewer_activations(setting):
    assert most(setting, "rematerialisation")["activations"] < 0.5 * most(setting, "dense")["activations"]


def test_offloading_moves_all_that_the_backward_pass_needs(setting, monkeypatch):
    saved, moved, cpu = [], [], torch.Tensor.cpu
    plain, offloading = (Training(setting, parse(name)) for name in ("dense", "offloading"))
    batch = Batch(plain.samples[:8])
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor.shape) or tensor, lambda x: x):
        plain.forward(batch)
    monkeypatch.setattr(torch.Tensor, "cpu", lambda tensor: moved.append(tensor.shape) or cpu(tensor))
    offloading.forward(batch)
    assert moved[: len(saved)] == saved and (8, 6, 64) in saved
    assert len(moved) == len(saved) + 1  # the losses, which are read on the host


def test_offloading_on_a_cpu_says_that_it_shows_nothing(setting):
    result = run_methods(setting, parse("offloading"), splits=())
    assert result.facts["offloading"].startswith("nothing to see: on a CPU run")


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


def test_moments_in_8_bits_take_a_quarter_of_the_bytes(setting):
    training = Training(setting, parse("8bit-optimizer:smallest=1"))
    training.step(Batch(training.samples[:8]))
    for parameter, state in training.optimizer.state.items():
        if parameter.numel() % 256 == 0:
            kept = sum(part.nbytes for name in ("first", "second") for part in state[name])
            assert kept == 2 * parameter.nbytes * (1 / 4 + 1 / 256)
    assert most(setting, "8bit-optimizer")["optimizer_state"] < 0.3 * most(setting, "dense")["optimizer_state"]


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


def test_the_codes_of_8_bits_are_denser_near_zero():
    signed, unsigned = (dynamic_values(flag, torch.device("cpu")) for flag in (True, False))
    assert len(signed.unique()) == len(unsigned.unique()) == 256
    assert (signed.abs() < 0.1).sum() > 120 and unsigned.min() == 0 and signed.max() == unsigned.max() == 1


def test_compressed_activations_take_a_quarter_of_the_bytes(setting):
    x = torch.randn(64, 768)
    codes, scales = compress(x, 256)
    assert codes.nbytes + scales.nbytes == x.nbytes * (1 / 4 + 1 / 256)
    assert most(setting, "compressed-activations")["activations"] < 0.45 * most(setting, "dense")["activations"]


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


def test_compression_is_right_to_a_step_and_takes_any_shape():
    x = torch.randn(7, 33)
    codes, scales = compress(x, 64)
    assert ((decompress(codes, scales, x.shape, x.dtype) - x).abs() <= scales.max() * 1.001).all()
    assert torch.equal(decompress(*compress(torch.zeros(65), 64), torch.Size([65]), x.dtype), torch.zeros(65))


def test_a_token_outside_the_window_has_no_influence(setting):
    training = Training(setting, parse("sparse-attention:window=1"))
    encoder = training.model.encoders[0]
    x = torch.randn(1, 8, 64)
    other = x.clone()
    other[0, 5] += 1
    changed = (encoder(x) - encoder(other)).abs().amax((0, 2)) > 0
    assert changed.tolist() == [True, False, False, False, True, True, True, False]
    assert sparse_attention.pattern(8, 1).sum() == 8 + 2 * 7 + 2 * 6


def test_plain_and_fused_attention_are_the_same_to_rounding(setting):
    query, key, value = torch.randn(3, 2, 4, 9, 16)
    fused = F.scaled_dot_product_attention(query, key, value)
    assert torch.allclose(plain_attention.attend(query, key, value), fused, atol=1e-6)
    assert most(setting, "plain-attention")["activations"] > most(setting, "dense")["activations"]


@pytest.mark.parametrize("name, bits", [("bf16", 8), ("fp8", 4)])
def test_low_precision_products_are_off_by_the_formats_rounding_and_fp32_outside(name, bits):
    torch.manual_seed(0)
    x, dense = torch.randn(16, 64), torch.nn.Linear(64, 64)
    for layer in (dense, TTLinear(64, 64, (4, 4, 4), (4, 4, 4), 4)):
        with RoundedProducts(FORMATS[name]):
            rounded = layer(x)
        error = ((rounded - layer(x)).norm() / layer(x).norm()).item()
        assert 2 ** (-bits - 6) < error < 2 ** (2 - bits) and rounded.dtype == torch.float32


def test_fp8_factors_have_four_significant_bits_at_any_size():
    for size in (1e-6, 1.0, 1e6):
        x = size * torch.tensor([1.0, 0.5, -0.26, 0.11, 0.0])
        rounded = scaled_and_rounded(x, torch.float8_e4m3fn)
        assert rounded[0] == pytest.approx(x[0].item(), rel=1e-6) and rounded[4] == 0
        errors = (rounded - x).abs()[:4] / x.abs()[:4]
        assert 0 < errors.max() <= 2**-4
    assert torch.equal(scaled_and_rounded(torch.zeros(3), torch.float8_e4m3fn), torch.zeros(3))


@pytest.mark.parametrize(
    "together, format, most",
    [("", "bf16", 0.05), ("tensor+", "bf16", 0.05), ("", "fp8", 0.25), ("tensor+", "fp8", 1)],  # cores: more products
)
def test_a_step_with_low_precision_products_differs_forward_and_backward(setting, together, format, most):
    method = f"low-precision-multiply:format={format}"
    exact, rounded = (gradients(setting, name) for name in (together or "dense", together + method))
    assert all(gradient.dtype == torch.float32 for gradient in rounded)
    assert all(0 < error < most for error in errors(exact, rounded))


def test_low_precision_products_say_what_rounding_cannot_show_and_take_no_other_format(setting):
    facts = run_methods(setting, parse("low-precision-multiply:format=fp8"), splits=()).facts
    assert "nothing of the time, energy and memory" in facts["low_precision"]
    with pytest.raises(MethodError, match="low-precision-multiply: format is 'fp4': it must be bf16 or fp8"):
        parse("low-precision-multiply:format=fp4")


def test_fp16_activations_are_half_as_wide_and_parameters_and_gradients_are_not(setting):
    training, seen = Training(setting, parse("fp16")), []
    training.model.encoders[0].first.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    training.step(Batch(training.samples[:8]))
    assert seen == [torch.float16]
    assert {p.dtype for p in training.model.parameters()} == {p.grad.dtype for p in training.model.parameters()}
    assert training.model.encoders[0].first.weight.grad.dtype == torch.float32


@pytest.mark.parametrize("together", ["", "tensor+"])
def test_the_scaled_loss_saves_gradients_that_fp16_would_lose_and_leaves_no_scale_in_them(setting, together):
    exact = gradients(setting, together or "dense")
    scaled, plain = (gradients(setting, f"{together}fp16:scale={scale}") for scale in (4096, 2.0**-18))
    assert max(errors(exact, scaled)) < 0.05
    assert max(errors(exact, plain)) > 0.5  # as small as if the gradients were so: what underflows is gone


def test_a_step_whose_gradient_is_not_finite_is_left_out_and_halves_the_scale(setting):
    training = Training(setting, parse("fp16:scale=4294967296,growth=2"))
    scaler, scales, moved = training.extra["fp16"]["scaler"], [], []
    training.count = 10
    for _ in range(40):
        before = training.model.intent_head.weight.detach().clone()
        training.step(Batch(training.samples[:8]))
        training.count = 10
        moved.append(not torch.equal(before, training.model.intent_head.weight))
        scales.append(scaler.get_scale())
    first = moved.index(True)
    assert 0 < first < 30 and scales[first - 1] == 2.0 ** (32 - first)
    assert 2 * scales[first] in scales[first:]  # two good steps doubled it
    assert training.methods[0].finish(training) == {"loss_scale": scales[-1], "steps_left_out": moved.count(False)}
    assert all(parameter.isfinite().all() for parameter in training.model.parameters())


def test_zero_offload_steps_as_adamw_does_and_leaves_the_model_no_gradient_and_no_state(setting):
    ways = {}
    for name in ("dense", "zero-offload"):
        training = Training(setting, parse(name))
        for _ in range(3):
            training.count = 10
            training.step(Batch(training.samples[:8]))
        ways[name] = training
    plain, offloaded = ways.values()
    assert all(map(torch.equal, plain.model.parameters(), offloaded.model.parameters()))
    places = {parameter.untyped_storage().data_ptr() for parameter in offloaded.model.parameters()}
    for parameter, state in offloaded.optimizer.state.items():
        assert parameter.grad is None and state["copy"].grad is None
        assert state["copy"].untyped_storage().data_ptr() not in places
        assert all(state[name].device.type == "cpu" for name in ("copy", "exp_avg", "exp_avg_sq"))
    facts = offloaded.finish()
    assert facts["host_bytes"] == 3 * 4 * sum(parameter.numel() for parameter in offloaded.model.parameters())
    state = measure_memory(offloaded)["most"]["optimizer_state"]["value"]
    assert facts["host_bytes"] <= state < 1.01 * facts["host_bytes"]
    assert facts["zero_offload"].startswith("nothing to see: on a CPU run")
