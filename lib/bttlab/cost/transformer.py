"""A small mixture-of-experts transformer: causal attention, and SwiGLU experts behind a top-k router, as in Mixtral.

Names of classes matter: `bttlab.cost.breakdown` tells layers apart by them.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from bttlab.cost.configuration import FineTuning


class LoraLinear(nn.Module):
    """A frozen linear layer with a trainable low-rank adapter: y = x W^T + x A^T B^T (Hu et al., arXiv 2106.09685).

    B begins at zero, so the adapter changes nothing at first; the scale alpha / r is 1.
    """

    def __init__(self, linear: nn.Linear, rank: int):
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, linear.in_features, device=linear.weight.device) / math.sqrt(rank))
        self.b = nn.Parameter(torch.zeros(linear.out_features, rank, device=linear.weight.device))

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) to (..., out)."""
        return self.linear(x) + x @ self.a.T @ self.b.T


class Attention(nn.Module):
    """Causal multi-head attention."""

    def __init__(self, config: FineTuning):
        super().__init__()
        self.heads = config.heads
        self.query, self.key, self.value, self.output = (
            nn.Linear(config.hidden, config.hidden, bias=False) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B,S,H) to (B,S,H)."""
        query, key, value = (
            linear(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for linear in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.output(mixed.transpose(1, 2).flatten(2))


class Router(nn.Module):
    """Chooses the experts of each token."""

    def __init__(self, config: FineTuning):
        super().__init__()
        self.top_k = config.top_k
        self.gate = nn.Linear(config.hidden, config.experts, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(T,H) to weights (T,k), which sum to 1, and the experts' numbers (T,k)."""
        weights, chosen = self.gate(x).softmax(-1).topk(self.top_k, dim=-1)
        return weights / weights.sum(-1, keepdim=True), chosen


class Expert(nn.Module):
    """SwiGLU: W2 (silu(W1 x) * W3 x)."""

    def __init__(self, config: FineTuning):
        super().__init__()
        self.w1 = nn.Linear(config.hidden, config.expert_hidden, bias=False)
        self.w3 = nn.Linear(config.hidden, config.expert_hidden, bias=False)
        self.w2 = nn.Linear(config.expert_hidden, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(n,H) to (n,H)."""
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class Experts(nn.Module):
    """All experts of a block; each sees its own tokens alone."""

    def __init__(self, config: FineTuning):
        super().__init__()
        self.experts = nn.ModuleList(Expert(config) for _ in range(config.experts))

    def forward(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """(T,H), (T,k), (T,k) to (T,H)."""
        mixed = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, place = torch.where(chosen == number)
            if len(token):
                mixed = mixed.index_add(0, token, expert(x[token]) * weights[token, place, None])
        return mixed


class Block(nn.Module):
    """Pre-norm attention and mixture of experts, each with its residual."""

    def __init__(self, config: FineTuning):
        super().__init__()
        self.attention_norm, self.experts_norm = nn.RMSNorm(config.hidden), nn.RMSNorm(config.hidden)
        self.attention, self.router, self.experts = Attention(config), Router(config), Experts(config)

    def forward(self, x: Tensor) -> Tensor:
        """(B,S,H) to (B,S,H)."""
        x = x + self.attention(self.attention_norm(x))
        tokens = self.experts_norm(x).flatten(0, 1)
        return x + self.experts(tokens, *self.router(tokens)).view_as(x)


class MixtureTransformer(nn.Module):
    """Predicts the next token; embedding and output are two matrices, positions come as sines and cosines."""

    def __init__(self, config: FineTuning):
        super().__init__()
        self.embedding = nn.Embedding(config.vocabulary, config.hidden)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.hidden)
        self.output = nn.Linear(config.hidden, config.vocabulary, bias=False)
        self.register_buffer("positions", _positions(config.sequence_length, config.hidden), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B,S) token ids to logits (B,S,V)."""
        x = self.embedding(tokens) + self.positions[: tokens.shape[1]]
        if not x.requires_grad and torch.is_grad_enabled():
            x.requires_grad_()  # so that the first block's backward pass has an end that a hook can see
        for block in self.blocks:
            x = block(x)
        return self.output(self.norm(x))


def _positions(length: int, hidden: int) -> Tensor:
    """Sines and cosines of falling frequency (Vaswani et al., §3.5), (S,H)."""
    angles = torch.arange(length)[:, None] * 10_000 ** -(torch.arange(0, hidden, 2) / hidden)
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def add_adapters(model: nn.Module, rank: int) -> None:
    """Freeze a model and give every linear layer but its output an adapter of its own."""
    model.requires_grad_(False)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and child.out_features != _vocabulary(model):
                setattr(parent, name, LoraLinear(child, rank))


def _vocabulary(model: nn.Module) -> int:
    return next(m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding))
