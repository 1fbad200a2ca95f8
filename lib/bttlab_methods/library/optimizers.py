"""Optimizers of PyTorch and pytorch-optimizer under a name; larger batches: linear scaling, LARS, LAMB."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bttlab_methods.method import Method
from bttlab_methods.setting import Setting
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


@dataclass(frozen=True)
class _LargeBatch(Method):
    """Batches of several times as many utterances."""

    family = "large batch"
    changes = frozenset({"optimizer", "batch size"})
    ranges = ("factor in [1, inf)",)

    factor: int = 4  # of the batch

    def change_setting(self, setting: Setting) -> Setting:
        return replace(setting, batch=self.factor * setting.batch)


@dataclass(frozen=True)
class LinearScaling(_LargeBatch):
    """Multiply batch and learning rate by the same number; the rate takes longer to rise."""

    name = "linear-scaling"
    source = "Goyal et al., arXiv 1706.02677, sections 2.1 and 2.2"
    changes = frozenset({"batch size"})
    ranges = (*_LargeBatch.ranges, "warmup in [0, 1)")

    warmup: float = 0.25  # part of the budget in which the rate rises

    def change_setting(self, setting: Setting) -> Setting:
        return replace(super().change_setting(setting), warmup=self.warmup).scaled(self.factor)


@dataclass(frozen=True)
class LARS(_LargeBatch):
    """SGD with momentum in larger batches, each weight's step in proportion to the weight's norm."""

    name = "lars"
    source = "You et al., arXiv 1708.03888, algorithm 1"

    # learning_rate, momentum, weight_decay: biases and norms take plain steps of this rate, without decay
    learning_rate: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 1e-4
    trust: float = 0.3  # norm of a weight's step over learning rate times the weight's norm, without momentum

    def make_optimizer(self, training: Training):
        from pytorch_optimizer import LARS as Lars

        constants = {"momentum": self.momentum, "weight_decay": self.weight_decay, "trust_coefficient": self.trust}
        return Lars(training.trained, lr=self.learning_rate, **constants)


@dataclass(frozen=True)
class LAMB(_LargeBatch, Betas):
    """Adam in larger batches, each weight's step in proportion to the weight's norm (of at most 10)."""

    name = "lamb"
    source = "You et al., arXiv 1904.00962, algorithm 2"

    # learning_rate: norm of a weight's step over the norm of the weight. Biases and norms take Adam's steps at Adam's
    # own rate.
    learning_rate: float = 0.01

    def make_optimizer(self, training: Training):
        matrices = [p for p in training.trained if p.ndim > 1]
        vectors = [p for p in training.trained if p.ndim < 2]
        groups = [{"params": matrices, "ratio_decay": self.weight_decay}, {"params": vectors, "lr": LEARNING_RATE}]
        return Layerwise(groups, **self.constants() | {"weight_decay": 0.0})


class Layerwise(KeptAdamW):
    """Adam, with steps in proportion to a parameter's norm in groups that have a "ratio_decay".

    pytorch-optimizer 4.1.0 has a Lamb. Its `adam=True` leaves out one or both of Adam's corrections of the moments.
    """

    largest_norm = 10.0  # of a parameter; the paper's phi

    def update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        step = self.direction(parameter, parameter.grad, group)
        ratio = 1.0
        if "ratio_decay" in group:
            step.add_(parameter, alpha=group["ratio_decay"])
            norms = float(parameter.norm()), float(step.norm())
            ratio = min(norms[0], self.largest_norm) / norms[1] if all(norms) else 1.0
        parameter.sub_(step, alpha=group["lr"] * ratio)
