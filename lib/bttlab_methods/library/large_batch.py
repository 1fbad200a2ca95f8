"""Larger batches with a larger learning rate, or with steps in proportion to each weight: linear scaling, LARS."""

from dataclasses import dataclass, replace

from bttlab_methods.method import Method
from bttlab_methods.setting import Setting
from bttlab_methods.training import Training


@dataclass(frozen=True)
class LinearScaling(Method):
    """Multiply batch and learning rate by the same number; the rate takes longer to rise."""

    name = "linear-scaling"
    family = "large batch"
    source = "Goyal et al., arXiv 1706.02677, sections 2.1 and 2.2"
    changes = frozenset({"batch size"})
    ranges = ("factor in [1, inf)", "warmup in [0, 1)")

    factor: int = 4  # of the batch and of the learning rate
    warmup: float = 0.25  # part of the budget in which the rate rises

    def change_setting(self, setting: Setting) -> Setting:
        return replace(setting, batch=self.factor * setting.batch, warmup=self.warmup).scaled(self.factor)


@dataclass(frozen=True)
class LARS(Method):
    """SGD with momentum in larger batches, each weight's step in proportion to the weight's norm."""

    name = "lars"
    family = "large batch"
    source = "You et al., arXiv 1708.03888, algorithm 1"
    changes = frozenset({"optimizer", "batch size"})
    ranges = ("factor in [1, inf)",)

    factor: int = 4  # of the batch
    # learning_rate, momentum, weight_decay: biases and norms take plain steps of this rate, without decay
    learning_rate: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 1e-4
    trust: float = 0.3  # norm of a weight's step over learning rate times the weight's norm, without momentum

    def change_setting(self, setting: Setting) -> Setting:
        return replace(setting, batch=self.factor * setting.batch)

    def make_optimizer(self, training: Training):
        from pytorch_optimizer import LARS as Lars

        constants = {"momentum": self.momentum, "weight_decay": self.weight_decay, "trust_coefficient": self.trust}
        return Lars(training.trained, lr=self.learning_rate, **constants)
