"""CoMERA: tensor compression whose ranks are trained beside the cores, with their size as a second objective."""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from bttlab_methods.layers import Train, numbers, trains
from bttlab_methods.library.ranks import EVERY, MEMORY, chosen_ranks, cut, drop_gates, put_gates
from bttlab_methods.library.tensor import TensorCompression
from bttlab_methods.training import Training

SPEED = 10.0  # of the gates: at a core's learning rate none would come from 1 to 0 within an epoch
GONE = 0.05  # a gate below it is as good as 0
FOLLOWS = 0.5  # how much the objective counts that does not lead


@dataclass(frozen=True)
class CoMERA(TensorCompression):
    """Tensor compression whose ranks are trained: gates on the bonds, their size a second objective, in two stages.

    A gate for each index of each bond is trained with the cores; indices whose gate nears 0 are cut. The size that the
    gates leave, as a part of that at the start, counts by a relaxation: absolute values in place of being there or not.
    Early, the loss plus `size_weight` times this size is minimised; late, whichever of the two is further above its
    target. How fast gates move, at what size they count as gone, and how much the other objective counts are choices
    made here.
    """

    name = "comera"
    source = "Yang et al., arXiv 2405.14377, section 3 (multi-objective training, early and late stage)"
    changes = TensorCompression.changes | {"ranks"}
    excludes = frozenset({"galore", "tensor-galore"})  # whose subspaces are of one shape
    ranges = (
        *("target in (0, 1)", "loss_target in [0, inf)", "early in (0, 1)"),
        *("size_weight in [0, inf)", "core_weight in [0, inf)"),
    )

    # target, loss_target: of the late stage: part of the numbers in the cores, and of the loss when it begins
    target: float = 0.5
    loss_target: float = 0.5
    early: float = 0.5  # part of the budget after which the late stage begins
    size_weight: float = 1.0  # the paper's gamma
    core_weight: float = 1e-5  # the paper's beta, times the cores' squares: gates do not fall while cores rise

    def change_model(self, training: Training) -> None:
        training.extra[self.name] = {"numbers": numbers(put_gates(training, SPEED)), "loss": None, "loss_target": None}

    def objective(self, training: Training, loss: Tensor) -> Tensor:
        state, layers = training.extra[self.name], trains(training.model)
        now = loss.item()
        state["loss"] = now if state["loss"] is None else MEMORY * state["loss"] + (1 - MEMORY) * now
        size = sum(map(relaxed_size, layers)) / state["numbers"]
        of_loss, of_size = 1.0, self.size_weight
        if training.progress >= self.early:
            if state["loss_target"] is None:
                state["loss_target"] = self.loss_target * state["loss"]
            loss_leads = state["loss"] - state["loss_target"] >= size.item() - self.target
            of_loss, of_size = (1 + FOLLOWS, FOLLOWS) if loss_leads else (FOLLOWS, 1 + FOLLOWS)
        squares = sum(core.square().sum() for layer in layers for core in layer.cores)
        return of_loss * loss + of_size * size + self.core_weight * squares

    def after_update(self, training: Training) -> None:
        """Cut the indices whose gates are gone; every bond keeps its largest."""
        if training.steps % EVERY:
            return
        for layer in trains(training.model):
            diagonals = [diagonal.detach().abs() for diagonal in layer.core_map.diagonals()]
            kept = [(one >= min(GONE, float(one.max()))).nonzero()[:, 0] for one in diagonals]
            if any(len(indices) < len(diagonal) for indices, diagonal in zip(kept, diagonals, strict=True)):
                cut(training.optimizer, layer, kept)

    def finish(self, training: Training) -> dict[str, Any]:
        """Put the gates into the cores; return the ranks that were found."""
        with torch.no_grad():
            for layer in trains(training.model):
                for core, gated in zip(layer.cores, layer.used_cores(), strict=True):
                    core.copy_(gated)
        drop_gates(training)
        return chosen_ranks(training, training.extra[self.name]["numbers"])


def relaxed_size(layer: Train) -> Tensor:
    """Return the numbers in a train's cores, where an index of a bond counts as much as its gate: shape ()."""
    bonds = [diagonal.abs().sum() for diagonal in layer.core_map.diagonals()]
    ends = [bonds[0].new_ones(()), *bonds, bonds[0].new_ones(())]
    modes = [math.prod(core.shape[1:-1]) for core in layer.cores]
    return sum(mode * left * right for mode, (left, right) in zip(modes, pairwise(ends), strict=True))
