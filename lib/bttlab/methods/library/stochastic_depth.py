"""Stochastic depth: encoders are left out at random while training."""

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from bttlab.methods.method import Method
from bttlab.methods.training import Training


class Droppable(nn.Module):
    """An encoder that may be left out of a training step; otherwise the expectation over that.

    Attributes
    ----------
    kept : bool
        Whether it acts in a training step.
    keep : float
        With which probability; when not training, y = x + keep (encoder(x) - x).
    """

    def __init__(self, encoder: nn.Module):
        super().__init__()
        self.encoder = encoder
        self.kept, self.keep = True, 1.0

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., T, hidden) to (..., T, hidden)."""
        if self.training:
            return self.encoder(x) if self.kept else x
        return x + self.keep * (self.encoder(x) - x)


@dataclass(frozen=True)
class StochasticDepth(Method):
    """Leave encoders out of training steps at random: deeper ones more often, and more often as training goes on.

    Encoder l of L stays with probability 1 - l/L (1 - theta); theta falls from 1 to `survival` as
    (1 - survival) exp(-speed * part of the budget used) + survival.

    Parameters
    ----------
    survival : float
        Probability with which the last encoder stays at the end, above 0.
    speed : float
        Of the fall.
    """

    name = "stochastic-depth"
    family = "incremental learning"
    source = "Huang et al., arXiv 1603.09382, equations 2, 4 and 5; schedule: Zhang and He, arXiv 2010.13369"
    changes = frozenset({"encoders"})

    survival: float = 0.7
    speed: float = 10.0

    def change_model(self, training: Training) -> None:
        """Make every encoder droppable."""
        training.model.encoders = nn.ModuleList(map(Droppable, training.model.encoders))
        training.extra[self.name] = {"kept": 0, "seen": 0}

    def change_batch(self, training: Training, batch):
        """Draw which encoders act in this step; after the budget all do, for then a step only measures."""
        encoders, counts = training.model.encoders, training.extra[self.name]
        theta = (1 - self.survival) * math.exp(-self.speed * training.progress) + self.survival
        for i, encoder in enumerate(encoders, 1):
            encoder.keep = 1 - i / len(encoders) * (1 - theta)
            encoder.kept = training.progress == 1 or training.random.random() < encoder.keep
            if training.progress < 1:
                counts["kept"] += encoder.kept
                counts["seen"] += 1
        return batch

    def finish(self, training: Training) -> dict[str, Any]:
        """Return the mean number of encoders in a training step."""
        counts = training.extra[self.name]
        return {"encoders_per_step": len(training.model.encoders) * counts["kept"] / max(1, counts["seen"])}
