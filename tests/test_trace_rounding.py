"""The check of a trace where outputs or gradients are sensitive to rounding: right modules pass, wrong ones do not."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bttlab.compiler.errors import ProgramError
from bttlab.compiler.program import compile
from bttlab.compiler.trace import trace

from training_processor import autograd, first_moments, some_samples

WORDS, WIDTH, HEADS, TAGS, LENGTH = 20, 32, 2, 5, 12


def rotated(x):
    """Interleaved rotary positions."""
    angles = torch.arange(x.shape[-2])[:, None] / 10000 ** (torch.arange(0, x.shape[-1], 2) / x.shape[-1])
    even, odd, cos, sin = x[..., 0::2], x[..., 1::2], angles.cos(), angles.sin()
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)


class Rotary(nn.Module):
    """Attention and a feed-forward part; parameters times 4 make the scores so large that rounding counts."""

    def __init__(self, seed, scale=4.0, change=None):
        super().__init__()
        torch.manual_seed(seed)
        self.change = change
        self.table, self.head, self.qkv = (
            nn.Embedding(WORDS, WIDTH),
            nn.Linear(WIDTH, TAGS),
            nn.Linear(WIDTH, 3 * WIDTH),
        )
        self.norm, self.out, self.up = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.mul_(scale)

    def forward(self, tokens):
        x = self.table(tokens)
        q, k, v = (y.view(*x.shape[:2], HEADS, -1).transpose(1, 2) for y in self.qkv(self.norm(x)).chunk(3, -1))
        context = F.scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True)
        x = x + self.out(context.transpose(1, 2).flatten(2))
        x = x + F.gelu(self.up(x))
        if self.change is not None and x.requires_grad:
            x.register_hook(self.change)
        return self.head(x)


def slightly(gradient):
    """A change of gradients that is less than what rounding does to them."""
    return (1 + 1e-5) * gradient


SEEDS = (1, 2)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_module_whose_constants_rounding_counts_is_the_module(fast, seed):
    model = trace(Rotary(seed), LENGTH)
    sample = some_samples(model, [LENGTH], seed)
    loss, gradients = first_moments(fast, compile(model), model.parameters(), sample)
    wanted_loss, wanted = autograd(model, model.parameters(), sample)
    assert loss == pytest.approx(wanted_loss, rel=1e-3)
    for name, gradient in wanted.items():
        assert np.abs(gradients[name] - gradient).max() < 1e-2 * np.abs(gradient).max(), name


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_a_wrong_module_is_refused_where_rounding_counts_as_much(seed, scale):
    with pytest.raises(ProgramError, match=r"gradient of .* differs from what was traced by"):
        trace(Rotary(seed, scale, slightly), LENGTH)


class Separate(nn.Module):
    """The bias of a key has the gradient 0; a hook changes large gradients behind the attention."""

    def __init__(self, limit):
        super().__init__()
        torch.manual_seed(0)
        self.limit = limit
        self.table, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, TAGS)
        self.query, self.key, self.value, self.up = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, tokens):
        x = self.table(tokens)
        parts = (layer(x).view(*x.shape[:2], HEADS, -1).transpose(1, 2) for layer in (self.query, self.key, self.value))
        y = self.up(x + F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2))
        if y.requires_grad:
            y.register_hook(lambda g: torch.where(g.abs() > self.limit, 1.5 * g, g))
        return self.head(torch.tanh(y))


@pytest.mark.parametrize("limit", [30.0, 100.0, 1e4])
def test_the_rounding_of_a_gradient_of_0_hides_no_other_gradient(limit):
    with pytest.raises(
        ProgramError, match=r"differs from what was traced where .* times as large; .*hook on gradients"
    ):
        trace(Separate(limit), LENGTH)
