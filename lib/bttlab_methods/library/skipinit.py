"""SkipInit: a scalar at the end of each residual branch."""

from dataclasses import dataclass

from bttlab_methods.branches import remove_norms, scale_branches
from bttlab_methods.method import Method
from bttlab_methods.training import Training


@dataclass(frozen=True)
class SkipInit(Method):
    """Multiply each residual branch by a scalar of its own that starts at 0 or near it; no LayerNorms.

    The embedding, which lies before the branches, keeps its LayerNorm.

    Parameters
    ----------
    initial : float
        Where the scalars start: 0, or at most 1 / sqrt(number of branches).
    speed : float
        Learning rate of the scalars over that of the weights, where Adam or AdamW updates.
    """

    name = "skipinit"
    family = "initialisation"
    source = "De and Smith, arXiv 2002.10444, section 4"
    changes = frozenset({"initialisation"})

    initial: float = 0.0
    speed: float = 30.0

    def change_model(self, training: Training) -> None:
        """Change every encoder."""
        for encoder in training.model.encoders:
            remove_norms(encoder)
            scale_branches(encoder, self.initial, self.initial, speed=self.speed)
