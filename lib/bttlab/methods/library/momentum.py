"""SGD with momentum: the update rule that keeps the least."""

from dataclasses import dataclass

import torch

from bttlab.methods.method import Method
from bttlab.methods.training import Training


@dataclass(frozen=True)
class Momentum(Method):
    """Update by a running sum of the gradients: one moment for each parameter instead of Adam's two.

    Parameters
    ----------
    learning_rate, momentum, weight_decay : float
        As for torch.optim.SGD.
    """

    name = "momentum"
    family = "optimizers"
    source = "Sutskever et al., ICML 2013, equations 1 and 2"
    changes = frozenset({"optimizer"})

    learning_rate: float = 0.003
    momentum: float = 0.9
    weight_decay: float = 0.0

    def make_optimizer(self, training: Training):
        """Return PyTorch's SGD."""
        return torch.optim.SGD(
            training.trained, lr=self.learning_rate, momentum=self.momentum, weight_decay=self.weight_decay
        )
