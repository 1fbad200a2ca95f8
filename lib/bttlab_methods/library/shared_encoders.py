"""Shared encoders: one set of parameters for all of them."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from bttlab_methods.method import Method
from bttlab_methods.training import Training


@dataclass(frozen=True)
class SharedEncoders(Method):
    """Let all encoders share the parameters of the first: the depth of the model with the size of one encoder.

    This is ALBERT's sharing across layers. ALBERT's factorised embedding is left out: `tensor`'s TTM table is smaller.
    """

    name = "shared-encoders"
    family = "parameter sharing"
    source = "Lan et al. (ALBERT), arXiv 1909.11942, section 3.1 (cross-layer parameter sharing)"
    changes = frozenset({"encoders"})
    excludes = frozenset({"initialisation"})  # which treats each encoder by its place, or is given from elsewhere

    def change_model(self, training: Training) -> None:
        """Put the first encoder in the place of all."""
        encoders = training.model.encoders
        training.model.encoders = nn.ModuleList([encoders[0]] * len(encoders))

    def finish(self, training: Training) -> dict[str, Any]:
        """Return how many times the encoder is used."""
        return {"uses_of_the_encoder": len(training.model.encoders)}
