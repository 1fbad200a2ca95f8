"""Subspace training: weights as factors, and activations kept for the backward pass in a subspace that follows them."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from bttlab.tensor import TTLinear
from bttlab_methods.method import Method
from bttlab_methods.setting import MethodError, Setting
from bttlab_methods.subspaces import LowRankLinear, keep_input_in_subspace
from bttlab_methods.training import Training


@dataclass(frozen=True)
class Subspace(Method):
    """Train weights as two factors of fixed rank, and keep their inputs by coordinates in a basis that follows.

    Of the published method (WASI) this has the activations' half: their basis takes a step of subspace iteration each
    forward pass, here for the features of a token alone. It has not the weights' half, where the weights' subspace is
    iterated, too: here the two factors are trained like any parameters. The paper begins with trained weights, whose
    spectrum falls; here training is from scratch, with random weights, whose spectrum is nearly flat. So what is
    explained is less, and the factors are scaled up to the weights' norm.
    With weights=false the layers stay as they are, TT layers, too.

    Parameters
    ----------
    weights, activations : bool
        Which of them are kept so.
    explained : float
        Part of a weight's squared norm that its factors have at the start, which gives their rank.
    activation_rank : int
        Coordinates of a token.
    rate_factor : float
        Of the learning rate, where weights are factors.
    """

    name = "subspace"
    family = "subspaces"
    source = (
        'after Nguyen et al., arXiv 2510.09160, "Efficient Resource-Constrained Training of Vision Transformers via '
        'Subspace Optimization" (WASI): its activations; weights as trained factors instead'
    )
    changes = frozenset({"linear layers", "saved activations"})
    ranges = ("explained in (0, 1]", "activation_rank in [1, inf)")
    excludes = frozenset({"fixup", "bf16", "fp16"})  # a weight of zeros has no spectrum; bases are FP32

    weights: bool = True
    activations: bool = True
    explained: float = 0.2
    activation_rank: int = 32
    rate_factor: float = 2.0

    def __post_init__(self) -> None:
        if not (self.weights or self.activations):
            raise MethodError("method subspace: weights and activations are both false: set one to true")
        super().__post_init__()
        parts = [("linear layers", self.weights), ("saved activations", self.activations)]
        object.__setattr__(self, "changes", frozenset(part for part, changed in parts if changed))

    def change_setting(self, setting: Setting) -> Setting:
        """Return the setting with the learning rate of factors."""
        return setting.scaled(self.rate_factor) if self.weights else setting

    def change_model(self, training: Training) -> None:
        """Replace the linear layers of the encoders and the poolers, or their forward passes."""
        hidden = training.setting.config.hidden_size
        for parent in list(training.model.modules()):
            for name, layer in list(parent.named_children()):
                square = isinstance(layer, nn.Linear) and layer.weight.shape == (hidden, hidden)
                if not square and not isinstance(layer, TTLinear):
                    continue
                if self.weights:
                    layer = LowRankLinear(layer, self.explained)
                    setattr(parent, name, layer)
                if self.activations:
                    keep_input_in_subspace(layer, hidden, self.activation_rank)

    def finish(self, training: Training) -> dict[str, Any]:
        """Return the ranks of the weights."""
        layers = training.model.named_modules()
        ranks = {name: layer.left.shape[1] for name, layer in layers if isinstance(layer, LowRankLinear)}
        return {"weight_ranks": ranks} if ranks else {}
