"""Lion: the sign of a momentum as the update."""

from dataclasses import dataclass

from bttlab.methods.method import Method
from bttlab.methods.training import Training


@dataclass(frozen=True)
class Lion(Method):
    """Update by the sign of an interpolated momentum: one moment for each parameter instead of Adam's two.

    Parameters
    ----------
    learning_rate, beta1, beta2, weight_decay : float
    """

    name = "lion"
    family = "optimizers"
    source = "Chen et al., arXiv 2302.06675, algorithm 2"
    changes = frozenset({"optimizer"})

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.99
    weight_decay: float = 0.01

    def make_optimizer(self, training: Training):
        """Return pytorch-optimizer's Lion."""
        from pytorch_optimizer import Lion as TorchLion

        return TorchLion(
            training.trained, lr=self.learning_rate, betas=(self.beta1, self.beta2), weight_decay=self.weight_decay
        )
