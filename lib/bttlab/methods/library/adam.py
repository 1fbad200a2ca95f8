"""Adam and AdamW: updates by two moments."""

from dataclasses import dataclass

import torch

from bttlab.methods.method import Method
from bttlab.methods.training import LEARNING_RATE, Training


@dataclass(frozen=True)
class Adam(Method):
    """Update by the mean of the gradients over the root of their mean square: two moments for each parameter.

    Parameters
    ----------
    learning_rate, beta1, beta2 : float
    """

    name = "adam"
    family = "optimizers"
    source = "Kingma and Ba, arXiv 1412.6980, algorithm 1"
    changes = frozenset({"optimizer"})

    learning_rate: float = LEARNING_RATE
    beta1: float = 0.9
    beta2: float = 0.999

    def make_optimizer(self, training: Training):
        """Return PyTorch's Adam."""
        return torch.optim.Adam(training.trained, lr=self.learning_rate, betas=(self.beta1, self.beta2), fused=True)


@dataclass(frozen=True)
class AdamW(Method):
    """Adam whose weight decay is no part of the gradient; at its defaults what runs have that name no optimizer.

    Parameters
    ----------
    learning_rate, beta1, beta2, weight_decay : float
    """

    name = "adamw"
    family = "optimizers"
    source = "Loshchilov and Hutter, arXiv 1711.05101, algorithm 2"
    changes = frozenset({"optimizer"})

    learning_rate: float = LEARNING_RATE
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.01

    def make_optimizer(self, training: Training):
        """Return PyTorch's AdamW."""
        return torch.optim.AdamW(
            training.trained,
            lr=self.learning_rate,
            betas=(self.beta1, self.beta2),
            weight_decay=self.weight_decay,
            fused=True,
        )
