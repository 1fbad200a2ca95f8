"""LARS: a learning rate for each layer, in proportion to its weights' norm."""

from dataclasses import dataclass, replace

from bttlab.methods.method import Method
from bttlab.methods.setting import Setting
from bttlab.methods.training import Training


@dataclass(frozen=True)
class LARS(Method):
    """SGD with momentum in larger batches, each weight's step in proportion to the weight's norm.

    Parameters
    ----------
    factor : int
        Of the batch.
    learning_rate, momentum, weight_decay : float
        Biases and norms take plain steps of this rate, without decay.
    trust : float
        Norm of a weight's step over learning rate times the weight's norm, without momentum.
    """

    name = "lars"
    family = "large batch"
    source = "You et al., arXiv 1708.03888, algorithm 1"
    changes = frozenset({"optimizer", "batch size"})

    factor: int = 4
    learning_rate: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 1e-4
    trust: float = 0.3

    def change_setting(self, setting: Setting) -> Setting:
        """Return the setting with the larger batch."""
        return replace(setting, batch=self.factor * setting.batch)

    def make_optimizer(self, training: Training):
        """Return pytorch-optimizer's LARS."""
        from pytorch_optimizer import LARS as TorchLARS

        return TorchLARS(
            training.trained,
            lr=self.learning_rate,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            trust_coefficient=self.trust,
        )
