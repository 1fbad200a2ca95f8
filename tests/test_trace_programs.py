"""Programs of idioms that people's modules have: the card's gradients are autograd's, or the module is refused."""

import math
import os

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, Phase, event, given, reject, settings
from hypothesis import strategies as st
from torch import nn

from bttlab.compiler.errors import ProgramError
from bttlab.compiler.hazards import check_program
from bttlab.compiler.program import Options, compile
from bttlab.compiler.trace import trace
from bttlab.model import Optimizer, ReferenceTrainer
from bttlab.tensor import ShapeError, TTLinear

from training_processor import check_gradients, sample_records, some_samples

WORDS, WIDTH, LENGTH = 40, 32, 12
EXAMPLES = int(os.environ.get("BTTLAB_IDIOM_EXAMPLES", "15"))  # drawn modules; many more offline
TOLERANCE = {"tolerance": 2e-4, "least": 1 / 10}


class Idioms(nn.Module):
    """Layers that a list of functions (net, x, tokens) -> x calls, in turn."""

    def __init__(self, steps, labels="each", freeze=None, front=None, modes=((4, 8), (8, 4)), rank=4, length=LENGTH):
        super().__init__()
        torch.manual_seed(0)
        self.steps, self.labels, self.front, self.length = steps, labels, front, length
        self.width = width = math.prod(modes[0])
        self.table, self.places = nn.Embedding(WORDS, width), nn.Embedding(length + 2, width)
        self.dense = nn.ModuleList(nn.Linear(width, width) for _ in steps)
        self.train_ = nn.ModuleList(TTLinear(width, width, *modes, rank) for _ in steps)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in steps)
        self.fused = nn.ModuleList(nn.Linear(width, 3 * width) for _ in steps)
        self.down = nn.ModuleList(nn.Linear(width, 4) for _ in steps)
        self.up = nn.ModuleList(nn.Linear(4, width) for _ in steps)
        self.rows = nn.ParameterList(nn.Parameter(0.3 * torch.randn(width)) for _ in steps)
        self.tokens = nn.Parameter(0.3 * torch.randn(1, length, width))
        self.register_buffer("waves", torch.randn(length, width).sin())
        self.head = nn.Linear(width, 7)
        for parameter in self.parameters():
            if parameter.ndim == 1:
                nn.init.normal_(parameter, std=0.3)
        nn.init.normal_(self.table.weight, std=0.7)
        if freeze is not None:
            freeze(self)

    def forward(self, tokens):
        x = self.table(tokens)
        if self.front is not None:
            x = FRONTS[self.front](self, x)
        for n, step in enumerate(self.steps):
            x = step(self, n, x, tokens)
        if self.front is not None and self.labels != "one":
            x = x[:, x.shape[1] - tokens.shape[1] :]
        return self.head(POOLS[self.labels](x, tokens))


FRONTS = {
    "class token": lambda net, x: torch.cat([net.rows[0].expand(len(x), 1, -1), x], 1),
    "soft prompt": lambda net, x: torch.cat([net.places(torch.arange(6))[None], net.rows[0][None, None], x], 1),
    "constant row": lambda net, x: torch.cat([torch.full((1, 1, net.width), 0.5), x], 1),
}
POOLS = {
    "each": lambda x, t: x,
    "one": lambda x, t: x[:, 0],
    "mean": lambda x, t: x.mean(1),
    "mean of words": lambda x, t: (x * (t != 0)[..., None]).sum(1) / (t != 0).sum(1, keepdim=True),
    "last": lambda x, t: x[:, -1],
    "last word": lambda x, t: x[torch.arange(len(x)), (t != 0).sum(1) - 1],
    "last word, gathered": lambda x, t: x.gather(1, ((t != 0).sum(1) - 1).view(-1, 1, 1).expand(-1, 1, x.shape[2]))[
        :, 0
    ],
    # refused
    "sum": lambda x, t: x.sum(1),
    "third": lambda x, t: x[:, 2],
}


def prune(net: Idioms) -> Idioms:
    """Freeze what no step uses."""
    trained = [p for p in net.parameters() if p.requires_grad]
    used = torch.autograd.grad(net(torch.arange(1, net.length + 1)[None]).sum(), trained, allow_unused=True)
    for parameter, grad in zip(trained, used, strict=True):
        parameter.requires_grad_(grad is not None)
    return net


def split(x, heads=2):
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


def merge(x):
    return x.transpose(1, 2).flatten(2)


def attention(net, n, x, mask=None, scale=None, heads=2):
    q, k, v = (split(part, heads) for part in net.fused[n](x).chunk(3, -1))
    return merge(F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale))


def gated(gate, value, shift):
    return torch.sigmoid(gate) * value + shift


def alibi(tokens):
    i = torch.arange(tokens.shape[1])
    slopes = torch.tensor([0.5, 0.25])[:, None, None]
    return -(i[:, None] - i).abs() * slopes


def window(tokens):
    i = torch.arange(tokens.shape[1])
    return (i[:, None] - i).abs() <= 2


def by_einsum(q, k, v):
    p = torch.einsum("bhqd,bhkd->bhqk", q, k).div(4).softmax(-1)
    return torch.einsum("bhqk,bhkd->bqhd", p, v).flatten(2)


def written(net, n, x, factor):
    q, k, v = (split(part) for part in net.fused[n](x).split(net.width, -1))
    return merge(torch.softmax(q @ k.mT * factor, -1) @ v)


def halves(x):
    return torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), -1)


def waves(tokens, size):
    angles = torch.arange(tokens.shape[1])[:, None] * 100.0 ** (-torch.arange(size) / size)
    return angles.cos(), angles.sin()


def rotated(x, tokens):
    """Rotary positions, as in Llama."""
    cos, sin = (torch.cat((y, y), -1) for y in waves(tokens, x.shape[-1] // 2))
    return x * cos + halves(x) * sin


def rotated_pairs(x, tokens):
    """Rotary positions, as in GPT-J."""
    cos, sin = (y.repeat_interleave(2, -1) for y in waves(tokens, x.shape[-1] // 2))
    return x * cos + torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2) * sin


def rotated_in_part(x, tokens):
    """Rotary positions of some features, as in GPT-NeoX."""
    return torch.cat((rotated(x[..., :8], tokens), x[..., 8:]), -1)


def rotary(rotate, q, k, v, tokens, heads=2):
    q, k, v = (split(y, heads) for y in (q, k, v))
    return merge(F.scaled_dot_product_attention(rotate(q, tokens), rotate(k, tokens), v, is_causal=True))


def grouped(net, n, x, **options):
    """Two heads of queries for a head of keys and values."""
    q, k, v = net.train_[n](x), net.dense[n](x)[..., :16], net.fused[n](x)[..., :48][..., 8:24]
    q, k, v = split(q), split(k, 1), split(v, 1)
    if not options:
        k, v = (y[:, :, None].expand(-1, -1, 2, -1, -1).reshape(q.shape) for y in (k, v))
    return merge(F.scaled_dot_product_attention(q, k, v, **options)) + net.fused[n](x)[..., : net.width]


IDIOMS = {
    "residual of a TT layer": lambda net, n, x, t: net.train_[n](x) + x,
    "x + x": lambda net, n, x, t: x + x,
    "GELU by tanh": lambda net, n, x, t: F.gelu(net.dense[n](x), approximate="tanh"),
    "quick GELU": lambda net, n, x, t: (y := net.dense[n](x)) * torch.sigmoid(1.702 * y),
    "gate and value of one layer": lambda net, n, x, t: (
        (y := net.fused[n](x))[..., : net.width] * y[..., net.width :].chunk(2, -1)[0] + y[..., 2 * net.width :]
    ),
    "a row for all tokens": lambda net, n, x, t: x + net.rows[n],
    "a factor for each feature": lambda net, n, x, t: x + net.rows[n] * net.dense[n](x),
    "sinusoids": lambda net, n, x, t: x + net.waves[: t.shape[1]],
    "fused qkv": lambda net, n, x, t: x + attention(net, n, x),
    "ALiBi": lambda net, n, x, t: attention(net, n, x, alibi(t)),
    "scale after the product": lambda net, n, x, t: written(net, n, x, 0.3),
    "padding mask": lambda net, n, x, t: attention(net, n, x, (t != 0)[:, None, None, :]),
    "a norm": lambda net, n, x, t: net.norms[n](x),
    "rows of a longer table": lambda net, n, x, t: (
        net.norms[n](x + net.places(torch.cumsum((t != 0).int(), 1) + 1)) if n == 0 else net.norms[n](x)
    ),
    "the rows of the table again": lambda net, n, x, t: net.dense[n](x) + net.table(t),
    "one TT layer twice": lambda net, n, x, t: net.train_[0](torch.tanh(net.train_[0](x))),
    "an adapter": lambda net, n, x, t: x + net.up[n](F.relu(net.down[n](x))),
    "leaky ReLU": lambda net, n, x, t: F.leaky_relu(net.dense[n](x), 0.2),
    "a highway": lambda net, n, x, t: (
        (y := torch.sigmoid(net.dense[n](x))) * torch.relu(net.train_[n](x)) + (1 - y) * x
    ),
    "one more, in place": lambda net, n, x, t: net.dense[n](x).add_(1.0) * x,
    "attention by einsum": lambda net, n, x, t: by_einsum(*(split(y) for y in net.fused[n](x).chunk(3, -1))),
    "tokens by tokens": lambda net, n, x, t: torch.einsum(
        "bqk,bkd->bqd", torch.einsum("bqd,bkd->bqk", x, net.dense[n](x)).mul(0.1).softmax(-1), x
    ),
    "RMSNorm of Llama": lambda net, n, x, t: (
        x + net.rows[n] * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))
    ),
    "LayerNorm written out": lambda net, n, x, t: (
        (y := x - x.mean(-1, keepdim=True)) / (y * y).mean(2, keepdim=True).add(1e-5).sqrt() * net.rows[n] + net.rows[0]
    ),
    "a norm with two readers": lambda net, n, x, t: (
        (y := F.rms_norm(x, (net.width,), eps=1e-6)) * net.rows[n] + net.dense[n](y)
    ),
    "columns of a TT layer": lambda net, n, x, t: x + torch.cat((x[..., 16:], net.train_[n](x)[..., :16]), -1),
    "every other column": lambda net, n, x, t: x - torch.cat((x[..., 1::2], net.dense[n](x)[..., ::2]), -1),
    "narrow parts beside each other": lambda net, n, x, t: (
        x + torch.cat([net.down[i % (n + 1)](x) for i in range(8)], -1)
    ),
    "rotary positions": lambda net, n, x, t: rotary(rotated, x, net.train_[n](x), x, t),
    "rotary positions by pairs": lambda net, n, x, t: rotary(rotated_pairs, net.dense[n](x), x, net.train_[n](x), t),
    "grouped queries": lambda net, n, x, t: grouped(net, n, x),
    "one head of keys and values, written out": lambda net, n, x, t: merge(
        (split(x) @ split(x[..., :16], 1).mT / 4).softmax(-1) @ split(net.train_[n](x)[..., 8:24], 1)
    ),
    "factors for tokens and features": lambda net, n, x, t: net.dense[n](x) * net.waves[: t.shape[1]] - x,
}
MORE_IDIOMS = {  # each with a rule of the recorder, or an operation, that one above has: in the long suite
    "residual of a dense layer": lambda net, n, x, t: x + net.dense[n](x),
    "difference of activations": lambda net, n, x, t: x - torch.tanh(net.dense[n](x)),
    "sigmoid": lambda net, n, x, t: torch.sigmoid(net.train_[n](x)),
    "a gate": lambda net, n, x, t: net.dense[n](x) * torch.tanh(net.train_[n](x)),
    "the same factors twice": lambda net, n, x, t: net.rows[0] * torch.tanh(x * net.rows[0].view(1, 1, -1)),
    "a window": lambda net, n, x, t: attention(net, n, x, window(t)),
    "a scale": lambda net, n, x, t: attention(net, n, x, scale=0.5),
    "a number as a tensor": lambda net, n, x, t: x + torch.tensor(0.5) * net.dense[n](x),
    "scaled tokens": lambda net, n, x, t: x * math.sqrt(net.width) / 4,
    "in place": lambda net, n, x, t: net.dense[n](x).relu_(),
    "positions": lambda net, n, x, t: x + net.places(torch.arange(t.shape[1])) if n == 0 else net.norms[n](x),
    "positions as a parameter": lambda net, n, x, t: x + net.tokens[:, : t.shape[1]] if n == 0 else net.norms[n](x),
    "a scaled query": lambda net, n, x, t: merge(
        F.scaled_dot_product_attention(*(split(y) for y in (net.dense[n](x) * 0.4, x, net.train_[n](x))), scale=1.0)
    ),
    "GLU": lambda net, n, x, t: F.glu((y := net.fused[n](x))[..., : 2 * net.width]) + y[..., 2 * net.width :],
    "one layer twice": lambda net, n, x, t: net.dense[0](torch.tanh(net.dense[0](x))),
    "one norm twice": lambda net, n, x, t: net.norms[0](net.dense[n](net.norms[0](x))),
    "fused qkv twice": lambda net, n, x, t: attention(net, 0, x + attention(net, 0, x)),
    "low rank": lambda net, n, x, t: net.dense[n](x) + 2 * net.up[n](net.down[n](x)),
    "an activation and its input": lambda net, n, x, t: (y := net.dense[n](x)) + F.relu(y) - torch.tanh(y),
    "a layer by einsum, without its bias": lambda net, n, x, t: torch.einsum("oi,...i->...o", net.dense[n].weight, x),
    "LayerNorm by var": lambda net, n, x, t: (
        (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + 1e-5) ** 0.5 + net.rows[n]
    ),
    "a function behind a norm that is written out": lambda net, n, x, t: (
        F.relu((y := net.dense[n](x)) / (y.pow(2).mean(-1, keepdim=True) + 1e-3).sqrt()) * 2 + x
    ),
    "two norms that are written out": lambda net, n, x, t: (
        x * (x.pow(2).mean(-1, keepdim=True) + 1e-3).rsqrt()
        + (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + 1e-3).sqrt()
    ),
    "factors, and the activation as another factor": lambda net, n, x, t: (
        (y := net.dense[n](x)) * net.waves[: t.shape[1]] * torch.tanh(y)
    ),
    "a mask minus the scores": lambda net, n, x, t: merge(
        (alibi(t) - (q := split(net.dense[n](x))) @ q.mT * 0.2).softmax(-1) @ split(x)
    ),
    "scores and their mask times a negative number": lambda net, n, x, t: merge(
        (-((q := split(net.dense[n](x))) @ q.mT * 0.2 + alibi(t))).softmax(-1) @ split(x)
    ),
    "limits that are constants": lambda net, n, x, t: torch.clamp(
        net.dense[n](x), min=net.waves[0] - 0.5, max=net.waves[: t.shape[1]] + 0.2
    ),
    "limits that are activations, and a number": lambda net, n, x, t: torch.clamp_max(
        net.dense[n](x).clamp(max=torch.tensor([1.5]), min=None), x.abs()
    ).clip(-x.abs()),
    "a norm without parameters": lambda net, n, x, t: F.layer_norm(net.dense[n](x), (net.width,)) + x,
    "other columns": lambda net, n, x, t: x + torch.cat((x, net.train_[n](x)), -1)[..., 5 : net.width + 5],
    "columns in reverse": lambda net, n, x, t: torch.tanh(net.train_[n](x)).flip(-1) * x,
    "rotary positions of one layer": lambda net, n, x, t: rotary(rotated, *net.fused[n](x).chunk(3, -1), t),
    "rotary positions of one head": lambda net, n, x, t: rotary(rotated, *net.fused[n](x).chunk(3, -1), t, 1),
    "rotary positions of some features": lambda net, n, x, t: rotary(rotated_in_part, x, net.train_[n](x), x, t),
    "grouped queries by an option": lambda net, n, x, t: grouped(net, n, x, enable_gqa=True),
    "one head of keys and values": lambda net, n, x, t: merge(
        F.scaled_dot_product_attention(split(x), *(split(net.dense[n](x)[..., i : i + 16], 1) for i in (0, 16)))
    ),
}
REFUSED = {
    "a narrow sigmoid": lambda net, n, x, t: x + net.up[n](torch.sigmoid(net.down[n](x))),
    "the mean of all tokens": lambda net, n, x, t: x + net.dense[n](x).mean(1, keepdim=True),
    "a mask of the other meaning": lambda net, n, x, t: attention(net, n, x, (t == 0)[:, None, None, :]),
    "by the length": lambda net, n, x, t: net.dense[n](x) if t.shape[1] > 3 else x,
    "in place of a view": lambda net, n, x, t: changed(net.dense[n](x)),
}
IDIOMS |= MORE_IDIOMS


def changed(y):
    z = y[:, :, :16]
    y.mul_(2.0)
    return y + F.pad(z, (0, 16))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name in MORE_IDIOMS else name for name in IDIOMS]
)
def test_an_idiom_trains_as_in_pytorch(fast, name):
    net = prune(Idioms([IDIOMS[name], IDIOMS["a norm"]]))
    program = check_gradients(fast, trace(net, LENGTH), (2, 7, 12), **TOLERANCE)
    assert check_program(program, (2, 11)) == []


class LastLogits(Idioms):
    """The logits of the last token, as in GPT2ForSequenceClassification."""

    def forward(self, tokens):
        logits = self.head(IDIOMS["fused qkv"](self, 0, self.table(tokens), tokens))
        return logits[torch.arange(len(tokens)), (torch.arange(tokens.shape[1]) * (tokens != 0)).argmax(-1)]


@pytest.mark.parametrize("pool", ["last", "last word", "last word, gathered", "last logits"])
def test_the_last_token_trains_as_in_pytorch(fast, pool):
    steps = [IDIOMS["fused qkv"], IDIOMS["a norm"]]
    model = trace(prune(LastLogits(steps[:1]) if pool == "last logits" else Idioms(steps, pool)), LENGTH)
    assert model.tasks == ["classification"]
    check_gradients(fast, model, (2, 7, 12), **TOLERANCE)


TAKEN = {
    "first": lambda x, count: x[:, 0],
    "words": lambda x, count: x[:, count:],
    "mean of words": lambda x, count: x[:, count:].mean(1),
    "last": lambda x, count: x[:, -1],
}


class InFront(Idioms):
    """Rows in front of the tokens, and positions that count them."""

    def __init__(self, front, taken):
        super().__init__([front], front=front)
        self.taken = TAKEN[taken]
        self.positions = nn.Parameter(0.3 * torch.randn(1, LENGTH + 7, WIDTH))

    def forward(self, tokens):
        x = FRONTS[self.front](self, self.table(tokens))
        x = x + self.positions[:, : x.shape[1]]
        x = self.norms[0](x + attention(self, 0, x))
        return self.head(self.taken(x, x.shape[1] - tokens.shape[1]))


@pytest.mark.parametrize("taken", TAKEN)
@pytest.mark.parametrize("front", FRONTS)
def test_rows_in_front_train_as_in_pytorch(fast, front, taken):
    model = trace(prune(InFront(front, taken)), LENGTH)
    program = check_gradients(fast, model, (2, 7, 12), **TOLERANCE)
    assert check_program(program, (2, 11)) == []


@pytest.mark.parametrize("name", ["residual of a dense layer", "fused qkv", "a gate", "residual of a TT layer"])
def test_frozen_parameters_do_not_change_and_cost_no_backward_pass(fast, name):
    steps = [IDIOMS[name], IDIOMS["a norm"], IDIOMS["residual of a dense layer"]]

    def head_alone(net):
        net.requires_grad_(False)
        net.head.requires_grad_(True)

    whole = check_gradients(fast, trace(prune(Idioms(steps)), LENGTH), (7,), **TOLERANCE)
    head = check_gradients(fast, trace(Idioms(steps, freeze=head_alone), LENGTH), (7,), **TOLERANCE)
    assert len(head.backward) < len(whole.backward) / 2


TRAINS = {  # modes, by width: two, three and four at each end
    16: (((4, 4), (8, 2)), ((2, 4, 2), (4, 2, 2)), ((2, 2, 2, 2), (1, 4, 2, 2))),
    32: (((4, 8), (8, 4)), ((2, 4, 4), (4, 2, 4), (4, 4, 2)), ((2, 2, 2, 4), (4, 2, 2, 2))),
    48: (((6, 8), (16, 3)), ((3, 4, 4), (4, 2, 6), (12, 2, 2)), ((2, 3, 2, 4), (4, 3, 2, 2))),
    80: (((8, 10), (5, 16)), ((5, 4, 4), (4, 2, 10)), ((2, 5, 2, 4),)),
}


@pytest.mark.parametrize("flow", ["mixed", (2, 2)])
def test_layers_of_four_modes_at_each_end(fast, flow):
    """A sum over two indices takes an instruction for each row of a core."""
    net = Idioms([IDIOMS["residual of a TT layer"]], modes=TRAINS[WIDTH][2], rank=8)
    check_gradients(fast, trace(prune(net), LENGTH), (2, 7), flow=flow, **TOLERANCE)


def test_a_gradient_that_an_engine_expands_is_checked(fast):
    net = Idioms([IDIOMS["residual of a TT layer"]], modes=((4, 4, 2), (4, 2, 4)), rank=24)
    program = check_gradients(fast, trace(prune(net), LENGTH), (7,), **TOLERANCE)
    assert check_program(program, (7,)) == []


def check_sums(fast, model, flow):
    """Compare the gradients of an update of three samples with PyTorch's, if a program sums them."""
    program = compile(model, Options(flow, sums=True))
    if not program.sums:
        return
    most = model.sequence_length
    assert check_program(program, (most // 2 + 1,)) == []
    optimizer, samples = Optimizer("momentum", batch_size=3), some_samples(model, [2, most, most // 2 + 1])
    fast.load_program(program)
    fast.load(model.parameters())
    fast.train(sample_records(program, samples, [1e-2] * 3, optimizer), optimizer)
    reference = ReferenceTrainer(model)
    reference.train(samples, optimizer, 1e-2)
    found, state = fast.store()[1], reference.store_optimizer_state()
    most = max(np.abs(gradient).max() for gradient in state.values())
    for name, gradient in found.items():
        wanted = state[f"first_moment.{name}"]
        assert np.abs(gradient - wanted).max() < 1e-3 * max(np.abs(wanted).max(), most / 10), name


@pytest.mark.parametrize("flow", ["bidirectional", (2, 2)])
def test_gradients_of_a_layers_uses_are_summed_over_an_update(fast, flow):
    net = Idioms([IDIOMS["one TT layer twice"]], modes=TRAINS[WIDTH][1][:2], rank=3)
    check_sums(fast, trace(prune(net), LENGTH), flow)


@st.composite
def modules(draw) -> Idioms:
    known = IDIOMS | REFUSED
    steps = [known[draw(st.sampled_from(list(known)))] for _ in range(draw(st.integers(1, 4)))]
    frozen = draw(st.sampled_from(["", "", "dense", "table", "norms", "head", "fused.0", "train_"]))

    def freeze(net):
        for name, parameter in net.named_parameters():
            if frozen and name.startswith(frozen):
                parameter.requires_grad_(False)

    front = draw(st.sampled_from([None, None, *FRONTS]))
    trains = draw(st.sampled_from(TRAINS[draw(st.sampled_from([32, 32, *TRAINS]))]))
    modes, length = (
        [draw(st.sampled_from(trains)) for _ in range(2)],
        draw(st.sampled_from([LENGTH, LENGTH, 5, 17, 33])),
    )
    rank = draw(st.sampled_from([*range(1, 18), 24, 33, 48]))
    net = Idioms(steps, draw(st.sampled_from(list(POOLS))), freeze, front, modes, rank, length)
    try:
        net(torch.arange(1, net.length + 1)[None])
    except (RuntimeError, ShapeError):  # steps that count the tokens, or no feature is left for a layer
        reject()
    return net


@settings(max_examples=EXAMPLES, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(net=modules(), flow=st.sampled_from(["bidirectional", "right_to_left", "mixed", (2, 2)]))
def test_random_modules_are_refused_or_right(fast, net, flow):
    """`--hypothesis-show-statistics` counts both; many examples need `--timeout 0`."""
    kind = "with rows in front" if net.front else "of the tokens alone"
    try:
        model = trace(prune(net), net.length)
        program = check_gradients(fast, model, (2, net.length // 2 + 1, net.length), flow=flow, **TOLERANCE)
        assert check_program(program, (net.length // 2 + 1,)) == []
        check_sums(fast, model, flow)
        event(f"{kind}: right")
    except ProgramError as error:
        assert "\n" not in str(error)
        event(f"{kind}: refused")


def test_frozen_parameters_keep_their_bits_in_pytorch_and_on_the_card(fast):
    """AdamW's decay would change them even without a gradient."""

    def dense_layers(net):
        net.dense.requires_grad_(False)

    model = trace(prune(Idioms([IDIOMS["residual of a dense layer"], IDIOMS["a norm"]], freeze=dense_layers)), LENGTH)
    before, samples, adamw = model.parameters(), some_samples(model, [5, 12, 9]), Optimizer("adamw")
    reference = ReferenceTrainer(model)
    reference.train(samples, adamw, 1e-2)
    program = compile(model)
    fast.load_program(program)
    fast.load(before)
    fast.train(sample_records(program, samples, [1e-2] * 3, adamw), adamw)
    assert "dense.0.weight" in model.frozen and "head.weight" not in model.frozen
    for name, found, card in ((n, p, fast.store()[0][n]) for n, p in reference.store_parameters().items()):
        is_same = [np.array_equal(after, before[name]) for after in (found, card)]
        assert is_same == [name in model.frozen] * 2, name
        np.testing.assert_allclose(card, found, atol=2e-3)
    state = reference.store_optimizer_state()
    assert not state["first_moment.dense.0.weight"].any() and state["first_moment.head.weight"].any()
