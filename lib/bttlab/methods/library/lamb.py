"""LAMB: Adam with a learning rate for each layer, in proportion to its weights' norm."""

from dataclasses import dataclass, replace

from bttlab.methods.method import Method
from bttlab.methods.setting import Setting
from bttlab.methods.training import LEARNING_RATE, Training


@dataclass(frozen=True)
class LAMB(Method):
    """Adam in larger batches, each weight's step in proportion to the weight's norm (of at most 10).

    Parameters
    ----------
    factor : int
        Of the batch.
    learning_rate : float
        Norm of a weight's step over the norm of the weight. Biases and norms take Adam's steps at Adam's own rate.
    beta1, beta2, weight_decay : float
    """

    name = "lamb"
    family = "large batch"
    source = "You et al., arXiv 1904.00962, algorithm 2"
    changes = frozenset({"optimizer", "batch size"})

    factor: int = 4
    learning_rate: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.01

    def change_setting(self, setting: Setting) -> Setting:
        """Return the setting with the larger batch."""
        return replace(setting, batch=self.factor * setting.batch)

    def make_optimizer(self, training: Training):
        """Return pytorch-optimizer's Lamb."""
        from pytorch_optimizer import Lamb

        groups = [
            {"params": [p for p in training.trained if p.ndim > 1]},
            {
                "params": [p for p in training.trained if p.ndim < 2],
                "lr": LEARNING_RATE,
                "weight_decay": 0.0,
                "adam": True,
            },
        ]
        return Lamb(
            groups,
            lr=self.learning_rate,
            betas=(self.beta1, self.beta2),
            weight_decay=self.weight_decay,
            eps=1e-8,  # gradients of the batch's mean are that small here
            adam_debias=True,  # else the first steps exceed rate times norm up to tenfold
        )
