"""GaLore: the optimizer's moments in a low-rank subspace of each gradient matrix."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from bttlab_methods.method import Method
from bttlab_methods.projected import ProjectedAdamW, projected_facts
from bttlab_methods.training import LEARNING_RATE, Training


@dataclass(frozen=True)
class GaLore(Method):
    """Project the gradient of each matrix to its first singular vectors; AdamW's moments live there.

    The basis is of the shorter side, and chosen again every few updates. Parameters with less than twice the rank at
    their shorter side are trained by AdamW as it is.

    Parameters
    ----------
    rank : int
        Of the subspace.
    every : int
        Updates between two choices of the subspace.
    scale : float
        Of the projected updates; the paper's alpha.
    learning_rate : float
    """

    name = "galore"
    family = "gradient compression"
    source = "Zhao et al., arXiv 2403.03507, section 4 and algorithm 2"
    changes = frozenset({"optimizer"})
    excludes = frozenset({"tensor", "tensor-int8", "tensor-int4", "ranks"})  # cores are no matrices: tensor-galore
    ranges = ("rank in [1, inf)", "every in [1, inf)")

    rank: int = 64
    every: int = 50
    scale: float = 4.0
    learning_rate: float = LEARNING_RATE

    def make_optimizer(self, training: Training):
        """Return AdamW with projected moments."""
        groups: list[dict[str, Any]] = [{"params": []}]
        for parameter in training.trained:
            if parameter.ndim == 2 and min(parameter.shape) >= 2 * self.rank:
                groups.append({"params": [parameter], "shape": parameter.shape, "ranks": self._ranks(parameter)})
            else:
                groups[0]["params"].append(parameter)
        return ProjectedAdamW(groups, self.learning_rate, self.every, self.scale)

    def _ranks(self, parameter: nn.Parameter) -> tuple[int | None, int | None]:
        rows, columns = parameter.shape
        return (None, self.rank) if rows >= columns else (self.rank, None)

    def finish(self, training: Training) -> dict[str, Any]:
        """Return what the moments take."""
        return projected_facts(training.optimizer)
