"""AdamW, momentum and Lion: optimizers of PyTorch and pytorch-optimizer under a name."""

from dataclasses import dataclass

import torch

from bttlab_methods.method import Method
from bttlab_methods.training import LEARNING_RATE, Training


@dataclass(frozen=True)
class AdamW(Method):
    """Update by two moments of the gradient; at its defaults the optimizer of runs that name none.

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
        betas = (self.beta1, self.beta2)
        return torch.optim.AdamW(
            training.trained, lr=self.learning_rate, betas=betas, weight_decay=self.weight_decay, fused=True
        )


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
        import pytorch_optimizer

        betas = (self.beta1, self.beta2)
        return pytorch_optimizer.Lion(
            training.trained, lr=self.learning_rate, betas=betas, weight_decay=self.weight_decay
        )
