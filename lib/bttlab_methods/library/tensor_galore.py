"""Tensor-GaLore: AdamW's moments in a subspace of each mode of the gradient, a Tucker core."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bttlab.model import ModelConfig
from bttlab_methods.library.optimizers import KeptAdamW, adam_direction
from bttlab_methods.method import Method
from bttlab_methods.training import LEARNING_RATE, Training

LEAST = 1000  # numbers of a parameter that is worth the projection


def tucker_bases(tensor: Tensor, ranks: Sequence[int]) -> list[Tensor]:
    """Return orthonormal bases (n_k, r_k) of a tensor's modes: one round of higher-order orthogonal iteration.

    A mode of size 1 has the basis (1, 1).
    """
    import tensorly  # here: only this needs it
    from tensorly.decomposition import partial_tucker

    modes = [mode for mode, size in enumerate(tensor.shape) if size > 1]
    with tensorly.backend_context("pytorch", local_threadsafe=True):  # leaves the caller's backend as it was
        (_, factors), _ = partial_tucker(
            tensor, [ranks[mode] for mode in modes], modes=modes, n_iter_max=int(len(modes) > 1)
        )
    found = dict(zip(modes, factors, strict=True))
    return [found[mode].contiguous() if mode in found else tensor.new_ones(1, 1) for mode in range(tensor.ndim)]


def along_modes(tensor: Tensor, matrices: Sequence[Tensor]) -> Tensor:
    """Return a tensor times a matrix along each mode."""
    for mode, matrix in enumerate(matrices):
        tensor = torch.tensordot(matrix, tensor, ([1], [mode])).movedim(0, mode)
    return tensor


class TuckerAdamW(KeptAdamW):
    """AdamW, whose moments of parameters with "shape" and "ranks" in their group are of the gradient's core.

    The gradient is folded to the shape. The moments stay as they are when the bases are chosen again.
    """

    def __init__(self, groups: list[dict[str, Any]], lr: float, every: int, scale: float):
        super().__init__(groups, lr)
        self.every, self.scale = every, scale

    def update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state, gradient, scale = self.state[parameter], parameter.grad, 1.0
        if "ranks" in group:
            gradient, scale = gradient.reshape(group["shape"]), self.scale
            if state.get("step", 0) % self.every == 0:
                state["bases"] = tucker_bases(gradient, group["ranks"])
            gradient = along_modes(gradient, [basis.t() for basis in state["bases"]])
        if "step" not in state:
            state |= {"step": 0, "exp_avg": torch.zeros_like(gradient), "exp_avg_sq": torch.zeros_like(gradient)}
        state["step"] += 1
        direction = adam_direction(state["exp_avg"], state["exp_avg_sq"], gradient, state["step"], group)
        if "ranks" in group:
            direction = along_modes(direction, state["bases"]).reshape(parameter.shape)
        parameter.sub_(direction, alpha=group["lr"] * scale)


@dataclass(frozen=True)
class TensorGaLore(Method):
    """Project each gradient tensor along all modes by a Tucker decomposition; AdamW's moments are of the core.

    Cores of a tensor model are tensors as they are. The square matrices of a dense model and its embedding are folded
    by the modes of the TT and TTM formats: 768 x 768 to 12 x 8 x 8 x 8 x 8 x 12. The bases of such small modes weigh
    next to nothing, where GaLore's basis weighs as much as half its moments.
    """

    name = "tensor-galore"
    family = "gradient compression"
    source = "George et al., arXiv 2501.02379, section 3"
    changes = frozenset({"optimizer"})
    ranges = ("fraction in (0, 1]", "every in [1, inf)")

    fraction: float = 0.75  # of each mode's size: the rank of the subspace along it
    every: int = 100  # updates between two choices of the subspace
    scale: float = 2.0  # of the projected updates; the paper's alpha
    learning_rate: float = LEARNING_RATE

    def shape_of(self, parameter: Tensor, config: ModelConfig) -> tuple[int, ...]:
        """Return the shape to which a parameter's gradient is folded; () of one that AdamW trains as it is."""
        if parameter.numel() < LEAST:
            return ()
        if parameter.ndim > 2:
            return tuple(parameter.shape)
        if parameter.shape == (config.hidden_size, config.hidden_size):
            return config.linear_out_modes + config.linear_in_modes
        if parameter.shape == (config.vocabulary_size, config.hidden_size):
            return config.embedding_row_modes + config.embedding_column_modes
        return ()

    def make_optimizer(self, training: Training) -> torch.optim.Optimizer:
        groups: list[dict[str, Any]] = [{"params": []}]
        for parameter in training.trained:
            shape = self.shape_of(parameter, training.setting.config)
            if shape:
                ranks = [max(1, round(self.fraction * size)) for size in shape]
                groups.append({"params": [parameter], "shape": shape, "ranks": ranks})
            else:
                groups[0]["params"].append(parameter)
        return TuckerAdamW(groups, self.learning_rate, self.every, self.scale)

    def finish(self, training: Training) -> dict[str, Any]:
        states = {p: state for p, state in training.optimizer.state.items() if "bases" in state}
        return {
            "projected_state_numbers": sum(
                2 * state["exp_avg"].numel() + sum(basis.numel() for basis in state["bases"])
                for state in states.values()
            ),
            "adamw_state_numbers_of_these": sum(2 * parameter.numel() for parameter in states),
        }
