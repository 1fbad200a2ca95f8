"""Helpers of the initialisations: residual branches of encoders, their scales, weights in either format."""

import torch
from torch import Tensor, nn

from bttlab.model.transformer import Encoder
from bttlab.tensor import TTLinear

LAST_OF_BRANCH = ("output", "second")  # of the attention's branch and of the feed-forward branch


class Scaled(nn.Module):
    """A layer times speed times a scalar that is trained.

    Parameters
    ----------
    layer : nn.Module
    scale : nn.Parameter, shape ()
    speed : float
        Adam moves every parameter by about the learning rate a step: the product moves so many times as fast.
    """

    def __init__(self, layer: nn.Module, scale: nn.Parameter, speed: float):
        super().__init__()
        self.layer, self.scale, self.speed = layer, scale, speed

    def forward(self, x: Tensor) -> Tensor:
        """Map x as the layer does, then scale."""
        return self.speed * self.scale * self.layer(x)


def scale_branches(encoder: Encoder, *initial: float, speed: float = 1.0) -> None:
    """Multiply what an encoder's branches add by trained scalars: one for each branch, or one that both share.

    Parameters
    ----------
    encoder : Encoder
    *initial : float
        What the branches are multiplied by at the start.
    speed : float
        As for `Scaled`.
    """
    device = next(encoder.parameters()).device
    scales = [nn.Parameter(torch.tensor(value / speed, device=device)) for value in initial]
    for i, name in enumerate(LAST_OF_BRANCH):
        setattr(encoder, name, Scaled(getattr(encoder, name), scales[i % len(scales)], speed))


def remove_norms(encoder: Encoder) -> None:
    """Take both LayerNorms out of an encoder: h = x + output(attention(x)), y = h + second(GELU(first(h)))."""
    encoder.attention_norm, encoder.feed_forward_norm = nn.Identity(), nn.Identity()


def weights(layer: nn.Module) -> list[nn.Parameter]:
    """Return what a layer's matrix or table is made of: the matrix itself, or its cores; no bias."""
    return list(layer.cores) if hasattr(layer, "cores") else [layer.weight]


def linear_layers(model: nn.Module) -> list[nn.Module]:
    """Return the linear layers, dense or TT, of the encoders and the poolers; not the heads."""
    parts = (model.encoders, model.intent_pooler, model.slot_pooler)
    return [layer for part in parts for layer in part.modules() if isinstance(layer, nn.Linear | TTLinear)]


@torch.no_grad()
def scale_weights(layer: nn.Module, factor: float) -> None:
    """Multiply a layer's matrix or table by a positive factor, of which each core takes the same part."""
    parts = weights(layer)
    for part in parts:
        part.mul_(factor ** (1 / len(parts)))


@torch.no_grad()
def clear_weights(layer: nn.Module) -> None:
    """Make a layer's matrix 0: in TT format by its first core alone, so that a gradient can lead out of there."""
    weights(layer)[0].zero_()
