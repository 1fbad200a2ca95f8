"""Tensor-GaLore: the optimizer's moments in the core of a Tucker decomposition of each gradient tensor."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from bttlab.model import ModelConfig
from bttlab_methods.method import Method
from bttlab_methods.projected import ProjectedAdamW, projected_facts
from bttlab_methods.training import LEARNING_RATE, Training

LEAST = 1000  # numbers of a parameter that is worth projecting


@dataclass(frozen=True)
class TensorGaLore(Method):
    """Project each gradient tensor along all modes by a Tucker decomposition; AdamW's moments are of the core.

    Cores of a tensor model are tensors as they are. The square matrices of a dense model and its embedding are folded
    by the modes of the TT and TTM formats: 768 x 768 to 12 x 8 x 8 x 8 x 8 x 12. The bases of such small modes weigh
    next to nothing, where GaLore's basis weighs as much as half its moments.

    Parameters
    ----------
    fraction : float
        Of each mode's size: the rank of the subspace along it.
    every : int
        Updates between two choices of the subspace.
    scale : float
        Of the projected updates.
    learning_rate : float
    """

    name = "tensor-galore"
    family = "gradient compression"
    source = "George et al., arXiv 2501.02379, section 3"
    changes = frozenset({"optimizer"})
    ranges = ("fraction in (0, 1]", "every in [1, inf)")

    fraction: float = 0.75
    every: int = 100
    scale: float = 2.0
    learning_rate: float = LEARNING_RATE

    def make_optimizer(self, training: Training):
        """Return AdamW with projected moments."""
        groups: list[dict[str, Any]] = [{"params": []}]
        for parameter in training.trained:
            shape = folded_shape(parameter, training.setting.config)
            if shape is None:
                groups[0]["params"].append(parameter)
            else:
                ranks = tuple(None if n == 1 else max(1, round(self.fraction * n)) for n in shape)
                groups.append({"params": [parameter], "shape": shape, "ranks": ranks})
        return ProjectedAdamW(groups, self.learning_rate, self.every, self.scale)

    def finish(self, training: Training) -> dict[str, Any]:
        """Return what the moments take."""
        return projected_facts(training.optimizer)


def folded_shape(parameter: nn.Parameter, config: ModelConfig) -> tuple[int, ...] | None:
    """Return the shape of the tensor that a parameter's gradient is, or None if it is a small one, or no tensor."""
    if parameter.numel() < LEAST:
        return None
    if parameter.ndim > 2:
        return tuple(parameter.shape)
    if parameter.shape == (config.hidden_size, config.hidden_size):
        return config.linear_out_modes + config.linear_in_modes
    if parameter.shape == (config.vocabulary_size, config.hidden_size):
        return config.embedding_row_modes + config.embedding_column_modes
    return None
