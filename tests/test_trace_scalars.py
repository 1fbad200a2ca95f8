"""One element of a parameter as the factor or shift of all features: ReZero, ScaleNorm, Dynamic Tanh, temperatures."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bttlab.card.opening import open_trainer
from bttlab.compiler.errors import ProgramError
from bttlab.compiler.hazards import check_program
from bttlab.compiler.program import Options, compile
from bttlab.compiler.trace import trace
from bttlab.model import Optimizer, ReferenceTrainer
from bttlab.model.trainer import StateError
from bttlab.tensor import TTLinear
from test_program_steps import check_same
from test_trace_programs import check_sums

from training_processor import check_gradients, equal_bits, some_samples

WORDS, WIDTH, HEADS, TAGS, LENGTH, LAYERS = 20, 32, 2, 5, 12, 2
TOLERANCE = {"tolerance": 2e-4, "least": 1 / 10}
SHAPES = [(), (1,), (1, 1), (1, 1, 1)]


def split(x):
    return x.view(*x.shape[:2], HEADS, -1).transpose(1, 2)


def attend(net, x):
    q, k, v = (split(part) for part in net.qkv(x).chunk(3, -1))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class Net(nn.Module):
    """Layers that a function (net, x) -> x calls; `scalar` is one element, `more` has three."""

    def __init__(self, encode, shape=(), value=0.5, frozen=()):
        super().__init__()
        torch.manual_seed(0)
        self.encode = encode
        self.table, self.q, self.k = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.qkv, self.norm, self.head = nn.Linear(WIDTH, 3 * WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, TAGS)
        self.train_ = TTLinear(WIDTH, WIDTH, (4, 8), (8, 4), 3)
        self.scalar = nn.Parameter(torch.full(shape, value))
        self.more = nn.Parameter(torch.tensor([0.5, -0.25, 2.0]))
        for name in frozen:
            getattr(self, name).requires_grad_(False)
        trained = [p for p in self.parameters() if p.requires_grad]
        used = torch.autograd.grad(self(torch.arange(1, LENGTH + 1)[None]).sum(), trained, allow_unused=True)
        for parameter, gradient in zip(trained, used, strict=True):
            parameter.requires_grad_(gradient is not None)

    def forward(self, tokens):
        return self.head(self.encode(self, self.table(tokens)))


def over_length(x, factor):
    return x * (factor / torch.norm(x, dim=-1, keepdim=True).clamp(min=1e-12))


def scored(net, x, change):
    q, k = split(net.q(x)), split(net.k(x))
    return (change(q @ k.mT).softmax(-1) @ k).transpose(1, 2).flatten(2)


def hidden(x):
    return torch.ones(x.shape[1], x.shape[1]).triu(1) > 0


def tempered(net, x):
    return scored(net, x, lambda scores: scores * net.scalar)


USES = {
    "a residual": lambda n, x: x + n.scalar * n.q(x),
    "a factor behind": lambda n, x: x + F.relu(n.q(x)) * n.scalar,
    "a shift": lambda n, x: F.relu(n.q(x) + n.scalar),
    "a shift of a function": lambda n, x: n.scalar + torch.tanh(n.q(x)),
    "inside of a function": lambda n, x: n.norm.weight * torch.tanh(n.scalar * n.q(x)) + n.norm.bias,
    "taken away": lambda n, x: (n.q(x) - n.scalar) * (n.norm.weight - F.relu(n.scalar - x)) - n.norm.bias,
    "PReLU": lambda n, x: F.prelu(n.q(x), n.scalar),
    "a gate": lambda n, x: n.scalar * n.q(x) + (1 - n.scalar) * x,
    "a gate by a function": lambda n, x: torch.sigmoid(n.scalar) * n.q(x) + (1 - torch.sigmoid(n.scalar)) * x,
    "functions of stacked": lambda n, x: (
        (x + n.more[0].tanh() * n.q(x)) * torch.relu(n.more[2]) - 2 * n.more[1].abs() * x
    ),
    "a function as a shift": lambda n, x: F.relu(n.q(x) + F.gelu(n.scalar)) * (1 + 2 * torch.relu(n.more[0])),
    "numbers": lambda n, x: n.q(x) * (2 * n.scalar) - 3 * (n.scalar * x) + (n.scalar - 0.25),
    "read twice": lambda n, x: F.relu((y := n.scalar * n.q(x)).clone()) + n.k(y),
    "a part and all": lambda n, x: (y := n.scalar * n.q(x)) + torch.cat([F.relu(y[..., 16:]), y[..., :16]], -1),
    "in place": lambda n, x: (n.q(x) + 0).mul_(n.scalar),
    "of heads": lambda n, x: (n.scalar * split(n.q(x)) * 2).transpose(1, 2).flatten(2),
    "of columns": lambda n, x: torch.cat([n.scalar * n.q(x)[..., :16], x[..., 16:]], -1),
    "of a layer in tensor format": lambda n, x: x + n.scalar * n.train_(n.scalar * x),
    "a function, shared": lambda n, x: n.scalar.tanh() * n.q(x) + F.relu(n.scalar * n.k(x)) + F.relu(n.scalar) * x,
    "shared": lambda n, x: x + n.scalar * F.relu(n.q(x)) + n.scalar * torch.tanh(n.k(x)),
    "stacked": lambda n, x: x + n.more[0] * n.q(x) + n.more[2] * torch.tanh(n.k(x)),
    "stacked and shared": lambda n, x: n.more[1] + (x + n.more[0] * n.q(x)) * n.more[2] + n.more[0] * F.relu(x),
    "expanded": lambda n, x: x + n.scalar.expand_as(x) * n.q(x),
    "ScaleNorm, the factor first": lambda n, x: n.scalar * x / x.norm(dim=-1, keepdim=True),
    "ScaleNorm, the factor over the length": lambda n, x: over_length(n.q(x), n.scalar),
    "ScaleNorm, the factor last": lambda n, x: F.normalize(n.q(x), dim=-1) * n.scalar * WIDTH**0.5,
    "ScaleNorm and its function": lambda n, x: F.relu(n.scalar * n.q(x)) + over_length(n.scalar * n.q(x), 3.0),
    "a temperature": tempered,
}
ONCE = ["a residual", "a shift", "a gate by a function", "stacked and shared", "ScaleNorm, the factor first"]


@pytest.mark.parametrize("name", USES)
def test_a_use_trains_as_in_pytorch(fast, name):
    program = check_gradients(fast, trace(Net(USES[name]), LENGTH), (2, 7, LENGTH), **TOLERANCE)
    assert check_program(program, (2, 11)) == []


@pytest.mark.parametrize(
    ("name", "copies"),
    [
        ("read twice", {}),
        ("shared", {"scalar#2": "scalar"}),
        ("stacked", {}),
        ("stacked and shared", {"more#2": "more"}),
    ],
)
def test_only_a_further_use_of_an_element_takes_a_copy(name, copies):
    assert trace(Net(USES[name]), LENGTH).graph.copies == copies


def test_the_slope_of_prelu_is_that_of_zeros(fast):
    net = Net(USES["PReLU"])
    for parameter in net.q.parameters():
        nn.init.zeros_(parameter)
    check_gradients(fast, trace(net, LENGTH), (7,), **TOLERANCE)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_scalar_keeps_its_shape_and_counts_once(fast, shape):
    net = Net(USES["a gate"], shape)
    model = trace(net, LENGTH)
    check_gradients(fast, model, (7,), **TOLERANCE)
    assert model.shapes["scalar"] == list(shape)
    assert model.parameters_count == sum(p.numel() for p in net.parameters())
    card = open_trainer(model, "emulated")
    card.load_parameters(model.parameters())
    card.train(some_samples(model, [5]), Optimizer("adamw"), 1e-2)
    state = card.store_parameters() | card.store_optimizer_state()
    for name in ("scalar", "first_moment.scalar", "second_moment.scalar"):
        assert state[name].shape == shape and state[name].any()


@pytest.mark.parametrize(
    "optimizer",
    [
        Optimizer("sgd"),
        Optimizer("sgd", batch_size=3),
        Optimizer("momentum"),
        Optimizer("adamw", weight_decay=0.5),
        Optimizer("adamw", weight_decay=0.5, batch_size=4),
    ],
    ids=lambda o: f"{o.name}, {o.batch_size}",
)
@pytest.mark.parametrize("name", ONCE)
def test_updates_are_those_of_pytorch_and_all_lanes_stay_equal(name, optimizer):
    model = trace(Net(USES[name]), LENGTH)
    card, reference = open_trainer(model, "emulated"), ReferenceTrainer(model)
    samples = some_samples(model, [5, 12, 2] * 8)
    card.load_parameters(model.parameters())
    losses = [trainer.train(samples, optimizer, 2e-2) for trainer in (card, reference)]
    assert np.abs(losses[0] - losses[1]).max() < 1e-3
    stored, wanted = card.store_parameters(), reference.store_parameters()
    scalars = [key for key in ("scalar", "more") if model.network.get_parameter(key).requires_grad]
    for key in scalars:
        np.testing.assert_allclose(stored[key], wanted[key], 1e-3, 1e-5)
        assert not np.array_equal(stored[key], model.parameters()[key])
    state, first = card.store_state(), 0
    for block in card.program.layout.blocks:
        lanes = state[:, first : first + block.vectors]
        first += block.vectors
        if block.name.partition("#")[0] in scalars:
            assert (lanes == lanes[..., :1]).all() and lanes[0].any()
    moments = card.store_optimizer_state()
    more, end = card.train(samples, optimizer, 1e-2), card.store_parameters()
    card.load_parameters(stored, moments)  # as of a checkpoint, which has one element of each scalar
    assert np.array_equal(card.train(samples, optimizer, 1e-2), more)
    assert equal_bits(card.store_parameters(), end)


@pytest.mark.parametrize("name", ["shared", "stacked and shared", "of a layer in tensor format"])
def test_gradients_are_summed_over_an_update(fast, name):
    check_sums(fast, trace(Net(USES[name]), LENGTH), "bidirectional")


def test_a_frozen_scalar_is_a_constant_or_keeps_its_bits(fast):
    """It is a parameter in sums and products, and a constant of the program in functions that the card lacks."""
    frozen = {
        "a product": (lambda n, x: n.q(x) + n.scalar * x, False),
        "a temperature": (tempered, False),
        "a divisor": (lambda n, x: n.q(x) / n.scalar, True),
        "of itself": (lambda n, x: n.q(x) * n.scalar.exp() + n.scalar**2, True),
    }
    for encode, is_folded in frozen.values():
        model = trace(Net(encode, (1,), frozen=["scalar"]), LENGTH)
        check_gradients(fast, model, (2, LENGTH), **TOLERANCE)
        card, parameters = open_trainer(model, "emulated"), model.parameters()
        card.load_parameters(parameters)
        card.train(some_samples(model, [5, 12]), Optimizer("adamw", weight_decay=0.5), 1e-2)
        assert equal_bits({"scalar": card.store_parameters()["scalar"]}, parameters)
        if is_folded:
            with pytest.raises(StateError, match="scalar is frozen, and the program has constants"):
                card.load_parameters(parameters | {"scalar": parameters["scalar"] + 1})


REFUSED = {
    "a divisor": (
        lambda n, x: n.q(x) / n.scalar,
        "Net: div by scalar is not supported on the card; use a factor in pl",
    ),
    "a function": (lambda n, x: n.q(x) * n.scalar.exp(), "Net: exp: a computed parameter, from scalar, is not"),
    "a function of twice it": (lambda n, x: x * (2 * n.scalar).tanh(), "Net: tanh: a computed parameter, from scalar"),
    "a function of a row": (lambda n, x: n.q(x) * n.norm.bias.tanh(), "tanh: a computed parameter, from norm.bias, is"),
    "a function as a weight": (
        lambda n, x: F.linear(n.q(x)[..., :1], n.scalar.tanh().view(1, 1)).expand_as(x),
        "linear with a weight that is a computed parameter, from scalar",
    ),
    "its square": (lambda n, x: n.q(x) * n.scalar * n.scalar + x * (n.scalar * n.scalar), "mul: a computed parameter"),
    "a shift times a number": (lambda n, x: n.q(x) + 2 * n.scalar, "add of a computed parameter, from scalar, is not"),
    "also a row": (
        lambda n, x: n.q(x) * n.q.bias[0],
        "mul: an element of q.bias is a factor or shift of all features, and other layers read q.bias by rows: use a "
        "parameter for each",
    ),
    "a limit of the length": (
        lambda n, x: n.scalar * x / x.norm(dim=-1, keepdim=True).clamp(min=1e-5),
        "Net: this function of all features is not supported",
    ),
    "behind a mask": (
        lambda n, x: scored(n, x, lambda scores: scores.masked_fill(hidden(x), -1e9) * n.scalar),
        "Net: mul of scores by scalar after a mask or bias is not supported on the card; use the factor before the",
    ),
    "a function as a bias of scores": (
        lambda n, x: scored(n, x, lambda scores: scores + n.scalar.tanh()),
        "a learned bias of attention scores, from scalar, is not",
    ),
    "a slope for each token": (
        lambda n, x: F.prelu(x[0], n.more.repeat(11)[:WIDTH])[None],
        "Net: prelu with a slope for",
    ),
    "for each token": (lambda n, x: n.q(x) * n.more.repeat(4)[:, None], "mul by these elements of more is not"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_uses_are_refused_at_their_line(name):
    encode, message = REFUSED[name]
    with pytest.raises(ProgramError) as error:
        trace(Net(encode), LENGTH)
    assert message in str(error.value) and "(test_trace_scalars.py, line" in str(error.value)


# ---- whole models ---------------------------------------------------------------------------------------------------


class DynamicTanh(nn.Module):
    """Zhu et al., Transformers without Normalization (CVPR 2025), equation 1."""

    def __init__(self, features, alpha=0.5):
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1) * alpha)
        self.weight, self.bias = nn.Parameter(torch.ones(features)), nn.Parameter(torch.zeros(features))

    def forward(self, x):
        return self.weight * torch.tanh(self.alpha * x) + self.bias


class ScaleNorm(nn.Module):
    """Nguyen and Salazar, Transformers without Tears (IWSLT 2019), equation 3."""

    def __init__(self, features, eps=1e-12):
        super().__init__()
        self.scale, self.eps = nn.Parameter(torch.tensor(float(features) ** 0.5)), eps

    def forward(self, x):
        return x * (self.scale / torch.norm(x, dim=-1, keepdim=True).clamp(min=self.eps))


class Block(nn.Module):
    """An encoder with a norm before each part; with `is_rezero`, a factor of each part that starts at 0 instead."""

    def __init__(self, norm, is_rezero=False):
        super().__init__()
        self.norms = nn.ModuleList(norm(WIDTH) for _ in range(2))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.factor = nn.Parameter(torch.zeros(())) if is_rezero else 1.0

    def forward(self, x):
        x = x + self.factor * self.out(attend(self, self.norms[0](x)))
        return x + self.factor * self.down(torch.tanh(self.up(self.norms[1](x))))


class Encoder(nn.Module):
    """Blocks between a table and labels of tokens."""

    def __init__(self, block):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks, self.head = nn.ModuleList(block() for _ in range(LAYERS)), nn.Linear(WIDTH, TAGS)

    def forward(self, tokens):
        x = self.table(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Stacked(Encoder):
    """ReZero with the factors of all blocks in one parameter."""

    def __init__(self):
        super().__init__(lambda: Block(nn.Identity))
        self.factors = nn.Parameter(torch.zeros(LAYERS))

    def forward(self, tokens):
        x = self.table(tokens)
        for factor, block in zip(self.factors, self.blocks, strict=True):
            x = x + factor * block(x)
        return self.head(x + self.places.weight[: tokens.shape[1]])


MODELS = {
    "Dynamic Tanh": lambda: Encoder(lambda: Block(DynamicTanh)),
    "ScaleNorm": lambda: Encoder(lambda: Block(ScaleNorm)),
    "ReZero": lambda: Encoder(lambda: Block(nn.Identity, True)),
    "ReZero, stacked": Stacked,
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_trains_as_in_pytorch(fast, name):
    model = trace(MODELS[name](), LENGTH)
    assert model.unseen == []
    program = check_gradients(fast, model, (3, LENGTH), **TOLERANCE)
    assert check_program(program, (11,)) == []
    card, reference, samples = (
        open_trainer(model, "emulated"),
        ReferenceTrainer(model),
        some_samples(model, [5, 12] * 12),
    )
    card.load_parameters(model.parameters())
    losses = [trainer.train(samples, Optimizer("adamw"), 1e-2) for trainer in (card, reference)]
    assert np.abs(losses[0] - losses[1]).max() < 2e-3
    assert losses[0][-4:].mean() < losses[0][:4].mean()


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_the_loop_gives_the_same_bits(loop, fast, name):
    check_same(loop, fast, compile(trace(MODELS[name](), LENGTH), Options()), (11, 5, 12), Optimizer("adamw"))
