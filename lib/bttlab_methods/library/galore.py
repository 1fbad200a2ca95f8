"""GaLore: AdamW's moments in a subspace of each gradient."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bttlab_methods.library.optimizers import KeptAdamW, adam_direction
from bttlab_methods.method import Method
from bttlab_methods.training import LEARNING_RATE, Training


class ProjectedAdamW(KeptAdamW):
    """AdamW, whose moments of matrices with a "rank" in their group are those of the gradient in a subspace.

    The moments stay as they are when the subspace is chosen again (GaLore, section 4.1); other parameters are GaLore's.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], lr: float, every: int, scale: float, **constants):
        super().__init__(groups, lr, **constants)
        self.every, self.scale = every, scale

    def update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state, gradient = self.state[parameter], parameter.grad
        if "rank" not in group:
            parameter.sub_(self._adam(state, gradient, group), alpha=group["lr"])
            return
        of_rows = gradient.shape[0] < gradient.shape[1]  # the shorter side
        if state.get("step", 0) % self.every == 0:
            u, _, v = torch.linalg.svd(gradient, full_matrices=False)
            state["basis"] = (u if of_rows else v.t())[:, : group["rank"]].contiguous()
        basis = state["basis"]
        direction = self._adam(state, basis.t() @ gradient if of_rows else gradient @ basis, group)
        parameter.sub_(basis @ direction if of_rows else direction @ basis.t(), alpha=group["lr"] * self.scale)

    @staticmethod
    def _adam(state: dict[str, Any], gradient: Tensor, group: dict[str, Any]) -> Tensor:
        if "step" not in state:
            state["step"] = 0
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(gradient), torch.zeros_like(gradient)
        state["step"] += 1
        return adam_direction(state["exp_avg"], state["exp_avg_sq"], gradient, state["step"], group)


@dataclass(frozen=True)
class GaLore(Method):
    """Project the gradient of each matrix to its first singular vectors; AdamW's moments live there.

    The basis is of the shorter side, and chosen again every few updates. Parameters with less than twice the rank at
    their shorter side are trained by AdamW as it is.
    """

    name = "galore"
    family = "gradient compression"
    source = "Zhao et al., arXiv 2403.03507, section 4 and algorithm 2"
    changes = frozenset({"optimizer"})
    excludes = frozenset({"tensor", "tensor-int8", "tensor-int4", "ranks"})  # cores are no matrices
    ranges = ("rank in [1, inf)", "every in [1, inf)")

    rank: int = 64  # of the subspace
    every: int = 50  # updates between two choices of the subspace
    scale: float = 4.0  # of the projected updates; the paper's alpha
    learning_rate: float = LEARNING_RATE

    def make_optimizer(self, training: Training) -> torch.optim.Optimizer:
        def is_projected(parameter: Tensor) -> bool:
            return parameter.ndim == 2 and min(parameter.shape) >= 2 * self.rank

        plain = [parameter for parameter in training.trained if not is_projected(parameter)]
        projected = [parameter for parameter in training.trained if is_projected(parameter)]
        groups = [{"params": plain}, *([{"params": projected, "rank": self.rank}] if projected else ())]
        return ProjectedAdamW(groups, self.learning_rate, self.every, self.scale)

    def finish(self, training: Training) -> dict[str, Any]:
        states = {p: state for p, state in training.optimizer.state.items() if "basis" in state}
        kept = sum(2 * state["exp_avg"].numel() + state["basis"].numel() for state in states.values())
        return {
            "projected_state_numbers": kept,
            "adamw_state_numbers_of_these": sum(2 * parameter.numel() for parameter in states),
        }
