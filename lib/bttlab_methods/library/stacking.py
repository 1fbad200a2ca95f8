"""Progressive stacking: a shallow model first, then copies of its encoders on top."""

import copy
from dataclasses import dataclass
from typing import Any

from bttlab_methods.method import Method
from bttlab_methods.setting import MethodError, Setting
from bttlab_methods.training import Training


@dataclass(frozen=True)
class Stacking(Method):
    """Train with few encoders, then put a copy of them on top, with a new optimizer state, until all are there.

    Encoder i of the deeper model starts as encoder i - n of the n that there were; embedding, poolers and heads go on.

    Parameters
    ----------
    doublings : int
        How often the depth doubles.
    share : float
        Part of the budget after which all encoders are there; the doublings are spread evenly over it.
    """

    name = "stacking"
    family = "incremental learning"
    source = "Gong et al., ICML 2019 (Efficient Training of BERT by Progressively Stacking), algorithm 1"
    changes = frozenset({"encoders"})
    excludes = frozenset({"ranks"})  # which are counted for the encoders of the start

    doublings: int = 1
    share: float = 0.3

    def change_setting(self, setting: Setting) -> Setting:
        """Check that there is an encoder for the start."""
        depth = setting.config.encoders
        if self.doublings < 1 or depth % 2**self.doublings:
            raise MethodError(
                f"stacking: doublings is {self.doublings} for {depth} encoder(s): it must be at least 1, and 2 to that "
                "power divide the encoders; take stacking:doublings=1 with --encoders 2"
            )
        return setting

    def change_model(self, training: Training) -> None:
        """Leave the first encoders only."""
        depth = len(training.model.encoders)
        training.model.encoders = training.model.encoders[: depth >> self.doublings]
        training.extra[self.name] = {"done": 0}

    def after_update(self, training: Training) -> None:
        """Double the depth when its time has come."""
        state = training.extra[self.name]
        while state["done"] < self.doublings and training.progress >= self.share * (state["done"] + 1) / self.doublings:
            state["done"] += 1
            training.model.encoders.extend([copy.deepcopy(encoder) for encoder in training.model.encoders])
            training.restart_optimizer()

    def finish(self, training: Training) -> dict[str, Any]:
        """Return the depth reached."""
        return {"encoders": len(training.model.encoders)}
