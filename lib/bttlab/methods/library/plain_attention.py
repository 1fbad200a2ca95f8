"""Plain attention: what fused attention, which the model uses without any method, saves."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bttlab.methods.method import Method
from bttlab.methods.training import Training


@dataclass(frozen=True)
class PlainAttention(Method):
    """Write the attention's softmax out; the model's own is fused and never keeps the T x T weights."""

    name = "plain-attention"
    family = "hardware view"
    source = "what Dao et al., arXiv 2205.14135, algorithm 0 calls standard; the fused one: torch's SDPA"
    changes = frozenset({"attention"})

    def change_model(self, training: Training) -> None:
        """Replace each encoder's attention."""
        for encoder in training.model.encoders:
            encoder.attend = attend


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return softmax(q k^T / sqrt(head size)) v, of tensors of shape (utterances, heads, T, head size)."""
    weights = torch.softmax(query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1]), -1)
    return weights @ value
