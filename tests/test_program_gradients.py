"""Gradients of the training processor's programs against autograd in float64, and what the machine does not hold."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bttlab.compiler import program
from bttlab.compiler.errors import ProgramError
from bttlab.compiler.functions import ACTIVATIONS
from bttlab.compiler.program import Options, compile
from bttlab.compiler.trace import trace
from bttlab.model import ModelConfig, Optimizer, Transformer, choices
from bttlab.tensor import Order, TTLinear

from training_processor import SMALL, check_gradients

PAPER = "bidirectional"
LENGTHS = (2, 5, 13, 16, 17, 24, 32)
TOLERANCE = 1e-5  # of the largest gradient of a tensor
MODES = ("linear_out_modes", "linear_in_modes", "embedding_column_modes")


def sized(hidden_size: int, *modes: tuple[int, ...], **fields) -> dict:
    """Fields of a configuration: out modes, in modes, and those of the embedding; all the same if one is given."""
    return {"hidden_size": hidden_size, **dict(zip(MODES, modes * (3 // len(modes)), strict=True)), **fields}


WIDER = sized(256, (4, 8, 8), heads=16)
MANY_HEADS = sized(384, (6, 8, 8), heads=24)
MORE_HEADS = sized(576, (6, 16, 6), heads=36)


OWN = Order.of(["R = G4 G5", "u = x G6", "z = R u", "L = G2 G3", "v = z L", "y = G1 v"])


@pytest.mark.parametrize("flow", ["bidirectional", "right_to_left", (2, 2), OWN], ids=str)
def test_a_small_model(fast, flow):
    check_gradients(fast, SMALL, (2, 17), 2 * TOLERANCE, flow=flow)


def test_an_order_of_other_trains():
    with pytest.raises(ProgramError, match=r"has 3 cores at each end, the order has 2 and 2 at the ends: give one"):
        compile(SMALL, Options(Order.of(["R = G3 G4", "z = x R", "L = G1 G2", "y = z L"], 2, 2)))


@pytest.mark.parametrize("name", choices.ACTIVATIONS)
def test_an_activation_of_a_configuration_is_that_of_the_compiler(name):
    x = torch.linspace(-8, 8, 101)
    encoder = Transformer(replace(SMALL, activation=name)).encoders[0]
    assert torch.equal(encoder.activate(x), ACTIVATIONS[name].torch(x))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_tables_of_activations(name):
    """Values and derivatives over a wide range of inputs, as the vector unit takes them from the tables."""
    activation, x = ACTIVATIONS[name], np.linspace(-40, 40, 80_001)
    exact = torch.from_numpy(x).requires_grad_()
    wanted = ACTIVATIONS[name].torch(exact)
    (slope,) = torch.autograd.grad(wanted.sum(), exact)
    found = _looked_up(activation.function, x) * (x if activation.times_x else 1)
    assert np.abs(found - wanted.detach().numpy()).max() < 3e-6
    away = x != 0  # where ReLU has no derivative
    assert np.abs(_looked_up(activation.slope, x) - slope.numpy())[away].max() < 3e-6


def _looked_up(function, x):
    """Evaluate a table in double precision: beyond its interval as at the ends."""
    steps = (np.clip(x, function.low, np.nextafter(function.high, 0)) - function.low) * function.steps
    part = np.minimum(steps.astype(int), function.parts - 1)
    c, f = function.table().astype(np.float64)[part], steps - part
    return c[:, 0] + c[:, 1] * f + c[:, 2] * f * f


@pytest.mark.long
@pytest.mark.parametrize("flow", ["bidirectional", "right_to_left", "auto"])
def test_the_papers_model(fast, flow):
    check_gradients(fast, ModelConfig(encoders=2), LENGTHS, TOLERANCE, flow=flow)


@pytest.mark.long
@pytest.mark.parametrize("rank", [1, 8, 15, 16, 24, 32])
def test_ranks(fast, rank):
    check_gradients(fast, ModelConfig(encoders=1, linear_rank=rank), (2, 13, 32), TOLERANCE)


@pytest.mark.long
@pytest.mark.parametrize(("flow", "each_bond"), [("right_to_left", False), ("bidirectional", True)])
def test_a_rank_for_each_layer(fast, flow, each_bond):
    config = ModelConfig(encoders=2)
    random = np.random.default_rng(3)
    network = Transformer(config)
    for layer in network.modules():
        if isinstance(layer, TTLinear):
            ranks = random.integers(1, 17, 5).tolist() if each_bond else int(random.choice([4, 8, 12, 16]))
            layer.set_cores(TTLinear(768, 768, layer.out_modes, layer.in_modes, ranks).cores)
    # A layer of small ranks may have small gradients: what is left of them is less exact.
    check_gradients(fast, trace(network, 32), (2, 13, 17, 32), 2 * TOLERANCE, flow)


@pytest.mark.long
@pytest.mark.parametrize(("encoders", "rank", "flow"), [(4, 12, PAPER), (6, 15, "auto")])
def test_deeper_models(fast, encoders, rank, flow):
    check_gradients(fast, ModelConfig(encoders=encoders, linear_rank=rank), (2, 17), TOLERANCE, flow=flow)


SHAPES = {
    "a wide embedding rank": {"embedding_rank": 17},
    "one head": {"heads": 1},
    "four heads": {"heads": 4},
    "far modes of 8": sized(128, (4, 4, 8), (8, 4, 4), (4, 4, 8), linear_rank=5),
    "far modes of 4": sized(128, (8, 4, 4), (4, 8, 4), (8, 4, 4), linear_rank=5),
    "96 features": sized(96, (4, 4, 6), (6, 4, 4), (6, 4, 4)),
    "512 features": sized(512, (8, 8, 8), heads=8, linear_rank=8),
    "many labels": {"intents": 130, "slots": 300},
    "another vocabulary": {"vocabulary_size": 210, "embedding_row_modes": (5, 6, 7)},
    "four tokens at most": {"sequence_length": 4},
    "sums of tokens in parts": {"sequence_length": 50},
    "d_V of tokens in parts": WIDER | {"heads": 4, "sequence_length": 64, "embedding_rank": 30},
    "a context beside p": {"sequence_length": 43, **MANY_HEADS},
    "scores that no bank has space for beside p": {"encoders": 1, "sequence_length": 64, **MANY_HEADS},
    "sums of heads in parts": {"encoders": 1, "sequence_length": 32, **MORE_HEADS},
}
IN_SHORT = ("a wide embedding rank", "many labels", "far modes of 4", "four tokens at most")


@pytest.mark.parametrize(
    "shape",
    [shape if shape in IN_SHORT else pytest.param(shape, marks=pytest.mark.long) for shape in SHAPES],
)
def test_small_models(fast, shape):
    # Four vectors of features, at most two encoders: a gradient is a sum of few, so less cancels, and less is averaged.
    config = replace(SMALL, **SHAPES[shape])
    lengths = [length for length in (2, 5, 16, config.sequence_length) if length <= config.sequence_length]
    check_gradients(fast, config, lengths, 2 * TOLERANCE)


@pytest.fixture
def quickly(monkeypatch, no_stored_programs) -> None:
    """Programs without their order and waits, which take long and say nothing of room."""
    monkeypatch.setattr("bttlab.compiler.program._Draft.scheduled", lambda draft: draft.emitted)
    monkeypatch.setattr("bttlab.compiler.program._compiled", program._compiled.__wrapped__)  # none of these is cached


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (ModelConfig(encoders=1, linear_rank=99), "choose ranks up to"),
        (ModelConfig(format="dense"), "choose format tensor"),
        (replace(SMALL, heads=8), "heads of a multiple of 16 features"),
        (
            replace(SMALL, encoders=1, sequence_length=64, **MORE_HEADS),
            "softmax takes 2304 rows of statistic 0; 2048 of its 2048 are free",
        ),
    ],
)
@pytest.mark.usefixtures("quickly")
def test_what_the_machine_does_not_hold(config, message):
    with pytest.raises(ProgramError, match=message):
        compile(config)


@pytest.mark.long
@pytest.mark.usefixtures("quickly")
def test_hidden_sizes():
    for size in range(64, 1025, 64):
        config = replace(ModelConfig(heads=1).with_hidden_size(size), heads=size // 64)
        assert compile(config).config.hidden_size == size
    for size, tokens in ((512, 64), (768, 56)):
        assert compile(replace(ModelConfig(heads=1).with_hidden_size(size), sequence_length=tokens))


LARGE = ModelConfig(encoders=6, linear_rank=16)


@pytest.mark.long
def test_a_model_without_room_for_moments_is_trained_by_sgd():
    program = compile(replace(LARGE, linear_rank=14), Options("auto"))
    program.check_optimizer(Optimizer("sgd"))
    message = "^the moments of adamw take 34878 vectors of bank 10, which has 32768: choose sgd, or fewer encoders"
    with pytest.raises(ProgramError, match=message):
        program.check_optimizer(Optimizer("adamw"))
