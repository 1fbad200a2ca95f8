"""ReZero: an initialisation that needs no LayerNorms in the encoders, in either format."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bttlab_methods.method import Method
from bttlab_methods.training import Training


class Scaled(nn.Module):
    """A layer times speed times a scalar that is trained, `scale` of shape ().

    Adam moves every parameter by about the learning rate a step: the product moves `speed` times as fast.
    """

    def __init__(self, layer: nn.Module, scale: nn.Parameter, speed: float):
        super().__init__()
        self.layer, self.scale, self.speed = layer, scale, speed

    def forward(self, x: Tensor) -> Tensor:
        return self.speed * self.scale * self.layer(x)


@dataclass(frozen=True)
class ReZero(Method):
    """Multiply both branches of an encoder by one scalar that starts at 0, in place of the LayerNorms.

    Each encoder starts as the identity: h = x + s output(attention(x)), y = h + s second(GELU(first(h))). The embedding
    keeps its LayerNorm.
    """

    name = "rezero"
    family = "initialisation"
    source = "Bachlechner et al., arXiv 2003.04887, section on transformers"
    changes = frozenset({"initialisation"})

    speed: float = 30.0  # learning rate of the scalars over that of the weights, where Adam or AdamW updates

    def change_model(self, training: Training) -> None:
        for encoder in training.model.encoders:
            encoder.attention_norm, encoder.feed_forward_norm = nn.Identity(), nn.Identity()
            scale = nn.Parameter(torch.zeros((), device=training.device))
            for name in ("output", "second"):
                setattr(encoder, name, Scaled(getattr(encoder, name), scale, self.speed))
