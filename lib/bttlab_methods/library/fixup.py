"""Fixup: residual networks without norms, by the size of their first weights."""

from dataclasses import dataclass

from bttlab_methods.branches import LAST_OF_BRANCH, clear_weights, remove_norms, scale_branches, scale_weights
from bttlab_methods.method import Method
from bttlab_methods.training import Training

WEIGHTS_OF_BRANCH = 2  # that follow each other: value and output, first and second


@dataclass(frozen=True)
class Fixup(Method):
    """Start the last layer of each branch and the heads at 0, scale the layer before; scalars, no LayerNorms.

    With L branches of m = 2 layers each, the layer before (value, first) is scaled by L^(-1/(2m - 2)). Each branch gets
    a scalar. The paper's scalar biases are not added: every layer here has a bias vector. The embedding, which lies
    before the branches, keeps its LayerNorm.

    Parameters
    ----------
    scalar : float
        Where the scalars start. The paper has 1, for SGD; Adam's steps do not shrink with the gradient, and make
        branches that start at 0 grow faster than the rest can follow, unless their scalars are small.
    """

    name = "fixup"
    family = "initialisation"
    source = "Zhang et al., arXiv 1901.09321, section 3 (Fixup initialization)"
    changes = frozenset({"initialisation"})

    scalar: float = 0.01

    def change_model(self, training: Training) -> None:
        """Change every encoder and both heads."""
        model = training.model
        branches = 2 * len(model.encoders)
        for encoder in model.encoders:
            remove_norms(encoder)
            for layer in (encoder.value, encoder.first):
                scale_weights(layer, branches ** (-1 / (2 * WEIGHTS_OF_BRANCH - 2)))
            for name in LAST_OF_BRANCH:
                clear_weights(getattr(encoder, name))
            scale_branches(encoder, self.scalar, self.scalar)
        for head in (model.intent_head, model.slot_head):
            clear_weights(head)
