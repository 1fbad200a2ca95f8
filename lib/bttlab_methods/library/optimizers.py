"""Optimizers of PyTorch and pytorch-optimizer under a name."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bttlab_methods.method import Method
from bttlab_methods.training import LEARNING_RATE, Training


class KeptAdamW(torch.optim.Optimizer):
    """AdamW whose subclass keeps the moments, and finds the update, in a way of its own."""

    def __init__(self, groups: Iterable, lr: float, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
        super().__init__(list(groups), {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    self.update(parameter, group)

    def update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        """Update a parameter that has decayed already."""
        raise NotImplementedError

    def direction(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> Tensor:
        """Return Adam's direction for a gradient, whose moments, of its shape, are in the parameter's state."""
        state = self.state[parameter]
        if "step" not in state:
            state |= {"step": 0, "exp_avg": torch.zeros_like(gradient), "exp_avg_sq": torch.zeros_like(gradient)}
        state["step"] += 1
        return adam_direction(state["exp_avg"], state["exp_avg_sq"], gradient, state["step"], group)


def adam_direction(first: Tensor, second: Tensor, gradient: Tensor, step: int, group: dict[str, Any]) -> Tensor:
    """Move both moments by a gradient, and return Adam's direction (arXiv 1412.6980, algorithm 1)."""
    beta1, beta2 = group["betas"]
    first.lerp_(gradient, 1 - beta1)
    second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    divisor = (second / (1 - beta2**step)).sqrt_().add_(group["eps"])
    return torch.div(first, divisor, out=divisor).div_(1 - beta1**step)


@dataclass(frozen=True)
class Betas(Method):
    """An optimizer with two factors of running means."""

    family = "optimizers"
    changes = frozenset({"optimizer"})

    learning_rate: float = LEARNING_RATE
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.01

    def constants(self) -> dict[str, Any]:
        """Return the fields as optimizers take them."""
        return {"lr": self.learning_rate, "betas": (self.beta1, self.beta2), "weight_decay": self.weight_decay}


class AdamW(Betas):
    """Update by two moments of the gradient; at its defaults the optimizer of runs that name none."""

    name = "adamw"
    source = "Loshchilov and Hutter, arXiv 1711.05101, algorithm 2"

    def make_optimizer(self, training: Training):
        return torch.optim.AdamW(training.trained, fused=True, **self.constants())


@dataclass(frozen=True)
class Momentum(Method):
    """Update by a running sum of the gradients: one moment for each parameter instead of Adam's two."""

    name = "momentum"
    family = "optimizers"
    source = "Sutskever et al., ICML 2013, equations 1 and 2"
    changes = frozenset({"optimizer"})

    # learning_rate, momentum, weight_decay: as for torch.optim.SGD
    learning_rate: float = 0.003
    momentum: float = 0.9
    weight_decay: float = 0.0

    def make_optimizer(self, training: Training):
        return torch.optim.SGD(
            training.trained, lr=self.learning_rate, momentum=self.momentum, weight_decay=self.weight_decay
        )


@dataclass(frozen=True)
class Lion(Betas):
    """Update by the sign of an interpolated momentum: one moment for each parameter instead of Adam's two."""

    name = "lion"
    source = "Chen et al., arXiv 2302.06675, algorithm 2"

    learning_rate: float = 1e-4
    beta2: float = 0.99

    def make_optimizer(self, training: Training):
        import pytorch_optimizer

        return pytorch_optimizer.Lion(training.trained, **self.constants())
