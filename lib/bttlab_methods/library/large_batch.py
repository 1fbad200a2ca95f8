"""Larger batches with a larger rate, or with steps in proportion to weights: linear scaling, LARS, LAMB."""

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from bttlab_methods.library.optimizers import Betas, KeptAdamW
from bttlab_methods.method import Method
from bttlab_methods.setting import Setting
from bttlab_methods.training import LEARNING_RATE, Training


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
