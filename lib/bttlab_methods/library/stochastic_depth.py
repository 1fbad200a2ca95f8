"""Stochastic depth: encoders are left out at random while training."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from bttlab_methods.method import Method
from bttlab_methods.training import Training


@dataclass
class Droppable:
    """In place of an encoder's forward pass: one that a training step may leave out, else the expectation over that.

    Parameters
    ----------
    encoder : nn.Module
    encode : callable
        Its forward pass as it was.
    kept : bool
        Whether it acts in a training step.
    keep : float
        With which probability; when not training, y = x + keep (encode(x) - x).
    """

    encoder: nn.Module
    encode: Callable[[Tensor], Tensor]
    kept: bool = True
    keep: float = 1.0

    def __call__(self, x: Tensor) -> Tensor:
        """Map (..., T, hidden) to (..., T, hidden)."""
        if self.encoder.training:
            return self.encode(x) if self.kept else x
        return x + self.keep * (self.encode(x) - x)


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
        """Make every encoder droppable; modules and parameters keep their names."""
        drops = [Droppable(encoder, encoder.forward) for encoder in training.model.encoders]
        for drop in drops:
            drop.encoder.forward = drop
        training.extra[self.name] = {"drops": drops, "kept": 0, "seen": 0}

    def change_batch(self, training: Training, batch):
        """Draw which encoders act in this step; after the budget all do, for then a step only measures."""
        state = training.extra[self.name]
        theta = (1 - self.survival) * math.exp(-self.speed * training.progress) + self.survival
        for i, drop in enumerate(state["drops"], 1):
            drop.keep = 1 - i / len(state["drops"]) * (1 - theta)
            drop.kept = training.progress == 1 or training.random.random() < drop.keep
            if training.progress < 1:
                state["kept"] += drop.kept
                state["seen"] += 1
        return batch

    def finish(self, training: Training) -> dict[str, Any]:
        """Return the mean number of encoders in a training step."""
        state = training.extra[self.name]
        return {"encoders_per_step": len(state["drops"]) * state["kept"] / max(1, state["seen"])}
