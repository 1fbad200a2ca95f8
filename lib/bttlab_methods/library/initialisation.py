"""Initialisations that need no LayerNorms in the encoders, in either format: Fixup, T-Fixup, SkipInit, ReZero."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from bttlab.model.transformer import Encoder
from bttlab.tensor import EMBEDDING_STD
from bttlab_methods.layers import weights
from bttlab_methods.method import Method
from bttlab_methods.setting import Setting
from bttlab_methods.training import Training

LAST_OF_BRANCH = ("output", "second")  # of the attention's branch and of the feed-forward branch


class Scaled(nn.Module):
    """A layer times speed times a scalar that is trained, `scale` of shape ().

    Adam moves every parameter by about the learning rate a step: the product moves `speed` times as fast.
    """

    def __init__(self, layer: nn.Module, scale: nn.Parameter, speed: float):
        super().__init__()
        self.layer, self.scale, self.speed = layer, scale, speed

    def forward(self, x: Tensor) -> Tensor:
        return self.speed * self.scale * self.layer(x)


def scale_branches(encoder: Encoder, *initial: float, speed: float = 1.0) -> None:
    """Multiply what an encoder's branches add by trained scalars: one for each branch, or one that both share.

    They start at `initial` and move as in `Scaled`.
    """
    device = next(encoder.parameters()).device
    scales = [nn.Parameter(torch.tensor(value / speed, device=device)) for value in initial]
    for i, name in enumerate(LAST_OF_BRANCH):
        setattr(encoder, name, Scaled(getattr(encoder, name), scales[i % len(scales)], speed))


@torch.no_grad()
def scale_weights(layer: nn.Module, factor: float) -> None:
    """Multiply a layer's matrix or table by a factor: each core by the same part, or the first alone by 0.

    With one core of zeros a gradient can lead out of there.
    """
    parts = weights(layer)
    for part in parts if factor else parts[:1]:
        part.mul_(factor ** (1 / len(parts)))


class WithoutNorms(Method):
    """Take both LayerNorms out of the encoders: h = x + output(attention(x)), y = h + second(GELU(first(h)))."""

    family = "initialisation"
    changes = frozenset({"initialisation"})

    def change_model(self, training: Training) -> None:
        for encoder in training.model.encoders:
            encoder.attention_norm, encoder.feed_forward_norm = nn.Identity(), nn.Identity()
            self.change_encoder(encoder, len(training.model.encoders))

    def change_encoder(self, encoder: Encoder, depth: int) -> None:
        """Replace the norms in one of `depth` encoders."""
        raise NotImplementedError


@dataclass(frozen=True)
class Fixup(WithoutNorms):
    """Start the last layer of each branch and the heads at 0, scale the layer before; scalars, no LayerNorms.

    The layers before (value, first) are scaled by (2 N)^(-1/2) for N encoders: L = 2 N branches of m = 2 layers. The
    paper's scalar biases are not added: every layer here has a bias vector.
    """

    name = "fixup"
    source = "Zhang et al., arXiv 1901.09321, section 3 (Fixup initialization)"

    # Where each branch's scalar starts. The paper has 1, for SGD; Adam's steps do not shrink with the gradient, and
    # make branches that start at 0 grow faster than the rest can follow, unless their scalars are small.
    scalar: float = 0.01

    def change_model(self, training: Training) -> None:
        super().change_model(training)
        for head in (training.model.intent_head, training.model.slot_head):
            scale_weights(head, 0.0)

    def change_encoder(self, encoder: Encoder, depth: int) -> None:
        for layer in (encoder.value, encoder.first):
            scale_weights(layer, (2 * depth) ** -0.5)
        for name in LAST_OF_BRANCH:
            scale_weights(getattr(encoder, name), 0.0)
        scale_branches(encoder, self.scalar, self.scalar)


@dataclass(frozen=True)
class TFixup(WithoutNorms):
    """Scale embeddings, values, outputs and feed-forward layers by the depth; no LayerNorms, no warm-up.

    Of N encoders of d features: embeddings get the standard deviation d^(-1/2) (9N)^(-1/4), the matrices of value,
    output, first and second are Xavier's times 0.67 N^(-1/4), the paper's factor for encoders. The embedding has no
    LayerNorm either.
    """

    name = "t-fixup"
    source = "Huang et al., ICML 2020 (Improving Transformer Optimization Through Better Initialization), section 3"

    rate_factor: float = 3.0  # of the learning rate: without LayerNorms the small embeddings take longer to count

    def change_setting(self, setting: Setting) -> Setting:
        return replace(setting, warmup=0.0).scaled(self.rate_factor)

    def change_model(self, training: Training) -> None:
        super().change_model(training)
        embedding, depth = training.model.embedding, len(training.model.encoders)
        for table in (embedding.word, embedding.position):
            scale_weights(table, training.setting.config.hidden_size**-0.5 / EMBEDDING_STD * (9 * depth) ** -0.25)
        embedding.norm = nn.Identity()

    def change_encoder(self, encoder: Encoder, depth: int) -> None:
        for layer in (encoder.value, encoder.output, encoder.first, encoder.second):
            scale_weights(layer, 0.67 * depth**-0.25)


@dataclass(frozen=True)
class SkipInit(WithoutNorms):
    """Multiply each residual branch by a scalar of its own that starts at 0 or near it; no LayerNorms."""

    name = "skipinit"
    source = "De and Smith, arXiv 2002.10444, section 4"

    initial: float = 0.0  # where the scalars start: 0, or at most 1 / sqrt(number of branches)
    speed: float = 30.0  # learning rate of the scalars over that of the weights, where Adam or AdamW updates

    def change_encoder(self, encoder: Encoder, depth: int) -> None:
        scale_branches(encoder, self.initial, self.initial, speed=self.speed)


@dataclass(frozen=True)
class ReZero(WithoutNorms):
    """Multiply both branches of an encoder by one scalar that starts at 0: it starts as the identity; no LayerNorms."""

    name = "rezero"
    source = "Bachlechner et al., arXiv 2003.04887, section on transformers"

    speed: float = 30.0  # as for SkipInit

    def change_encoder(self, encoder: Encoder, depth: int) -> None:
        scale_branches(encoder, 0.0, speed=self.speed)
