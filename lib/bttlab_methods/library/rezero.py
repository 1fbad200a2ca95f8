"""ReZero: residual branches that start at nothing."""

from dataclasses import dataclass

from bttlab_methods.branches import remove_norms, scale_branches
from bttlab_methods.method import Method
from bttlab_methods.training import Training


@dataclass(frozen=True)
class ReZero(Method):
    """Multiply both branches of an encoder by one scalar that starts at 0, in place of the LayerNorms.

    Each encoder starts as the identity; the embedding keeps its LayerNorm.

    Parameters
    ----------
    speed : float
        Learning rate of the scalars over that of the weights, where Adam or AdamW updates.
    """

    name = "rezero"
    family = "initialisation"
    source = "Bachlechner et al., arXiv 2003.04887, section on transformers"
    changes = frozenset({"initialisation"})

    speed: float = 30.0

    def change_model(self, training: Training) -> None:
        """Change every encoder."""
        for encoder in training.model.encoders:
            remove_norms(encoder)
            scale_branches(encoder, 0.0, speed=self.speed)
