"""Adapters: small layers between frozen ones."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from bttlab_methods.pretrained import FromPretrained
from bttlab_methods.training import Training


@dataclass(frozen=True)
class Adapters(FromPretrained):
    """Freeze a model trained first, and train a bottleneck behind each attention and feed-forward block.

    The norms of the encoders are trained too, as in the paper. peft has no such adapter for modules at large.

    Parameters
    ----------
    size : int
        Features of the bottleneck.
    pretraining : int
        Samples that the model is trained on first.
    rate_factor : float
        Of the learning rate.
    """

    name = "adapters"
    source = "Houlsby et al., arXiv 1902.00751, section 2.1"
    changes = FromPretrained.changes | {"linear layers"}

    size: int = 32
    rate_factor: float = 4.0

    def choose_trained(self, training: Training) -> None:
        """Put an adapter behind the last layer of each block, before the residual is added."""
        training.model.requires_grad_(False)
        for encoder in training.model.encoders:
            for name in ("output", "second"):
                setattr(encoder, name, Adapted(getattr(encoder, name), self.size).to(training.device))
            encoder.attention_norm.requires_grad_(True)
            encoder.feed_forward_norm.requires_grad_(True)


class Adapted(nn.Module):
    """y + up(GELU(down(y))) of y = layer(x); `up` starts at 0, so that at first nothing changes.

    Parameters
    ----------
    layer : nn.Linear
    size : int
        Features between `down` and `up`.
    """

    def __init__(self, layer: nn.Linear, size: int):
        super().__init__()
        self.layer = layer
        self.down, self.up = nn.Linear(layer.out_features, size), nn.Linear(size, layer.out_features)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map x of shape (..., in) to (..., out)."""
        y = self.layer(x)
        return y + self.up(F.gelu(self.down(y)))
