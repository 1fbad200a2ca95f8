"""GaLore and Tensor-GaLore: AdamW's moments in a subspace of each gradient."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bttlab.model import ModelConfig
from bttlab_methods.library.optimizers import KeptAdamW
from bttlab_methods.method import Method
from bttlab_methods.training import LEARNING_RATE, Training

LEAST = 1000  # numbers of a parameter that is worth Tensor-GaLore's projection


def singular_basis(gradient: Tensor, rank: int) -> dict[int, Tensor]:
    """Return the first singular vectors of a matrix along its shorter side, (n, rank), by that side's mode."""
    of_rows = gradient.shape[0] < gradient.shape[1]
    u, _, v = torch.linalg.svd(gradient, full_matrices=False)
    return {0 if of_rows else 1: (u if of_rows else v.t())[:, :rank].contiguous()}


def tucker_bases(tensor: Tensor, ranks: Sequence[int]) -> dict[int, Tensor]:
    """Return orthonormal bases (n_k, r_k) of the modes: one round of higher-order orthogonal iteration."""
    import tensorly  # here: only this needs it
    from tensorly.decomposition import partial_tucker

    modes = [mode for mode, size in enumerate(tensor.shape) if size > 1]
    with tensorly.backend_context("pytorch", local_threadsafe=True):  # leaves the caller's backend as it was
        (_, factors), _ = partial_tucker(
            tensor, [ranks[mode] for mode in modes], modes=modes, n_iter_max=int(len(modes) > 1)
        )
    return {mode: factor.contiguous() for mode, factor in zip(modes, factors, strict=True)}


def along_modes(tensor: Tensor, matrices: Mapping[int, Tensor]) -> Tensor:
    """Return a tensor times a matrix along each mode that has one."""
    for mode, matrix in matrices.items():
        tensor = torch.tensordot(matrix, tensor, ([1], [mode])).movedim(0, mode)
    return tensor


class ProjectedAdamW(KeptAdamW):
    """AdamW, whose moments of some parameters are those of the gradient in a subspace.

    A group with a "rank" has matrices that are projected along the shorter side, one with "ranks" tensors along all
    modes, folded to "shape". The moments stay as they are when the subspace is chosen again (GaLore, section 4.1).
    """

    def __init__(self, groups: Iterable[dict[str, Any]], lr: float, every: int, scale: float, **constants):
        super().__init__(groups, lr, **constants)
        self.every, self.scale = every, scale

    def update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state, gradient, bases, scale = self.state[parameter], parameter.grad, {}, 1.0
        if "rank" in group or "ranks" in group:
            gradient, scale = gradient.reshape(group.get("shape", gradient.shape)), self.scale
            if state.get("step", 0) % self.every == 0:
                choose, name = (singular_basis, "rank") if "rank" in group else (tucker_bases, "ranks")
                state["bases"] = choose(gradient, group[name])
            bases = state["bases"]
            gradient = along_modes(gradient, {mode: basis.t() for mode, basis in bases.items()})
        direction = self.direction(parameter, gradient, group)
        parameter.sub_(along_modes(direction, bases).reshape(parameter.shape), alpha=group["lr"] * scale)


class _Projected(Method):
    """GaLore or Tensor-GaLore."""

    family = "gradient compression"
    changes = frozenset({"optimizer"})

    def subspace(self, parameter: Tensor, config: ModelConfig) -> dict[str, Any]:
        """Return the group's entries of a parameter that is projected; {} of one that AdamW trains as it is."""
        raise NotImplementedError

    def make_optimizer(self, training: Training) -> torch.optim.Optimizer:
        config = training.setting.config
        groups = [{"params": [one], **self.subspace(one, config)} for one in training.trained]
        return ProjectedAdamW(groups, self.learning_rate, self.every, self.scale)

    def finish(self, training: Training) -> dict[str, Any]:
        states = {p: state for p, state in training.optimizer.state.items() if "bases" in state}
        kept = sum(
            2 * one["exp_avg"].numel() + sum(b.numel() for b in one["bases"].values()) for one in states.values()
        )
        whole = sum(2 * parameter.numel() for parameter in states)
        return {"projected_state_numbers": kept, "adamw_state_numbers_of_these": whole}


@dataclass(frozen=True)
class GaLore(_Projected):
    """Project the gradient of each matrix to its first singular vectors; AdamW's moments live there.

    The basis is of the shorter side, and chosen again every few updates. Parameters with less than twice the rank at
    their shorter side are trained by AdamW as it is.
    """

    name = "galore"
    source = "Zhao et al., arXiv 2403.03507, section 4 and algorithm 2"
    excludes = frozenset({"tensor", "tensor-int8", "tensor-int4", "ranks"})  # cores are no matrices
    ranges = ("rank in [1, inf)", "every in [1, inf)")

    rank: int = 64  # of the subspace
    every: int = 50  # updates between two choices of the subspace
    scale: float = 4.0  # of the projected updates; the paper's alpha
    learning_rate: float = LEARNING_RATE

    def subspace(self, parameter: Tensor, config: ModelConfig) -> dict[str, Any]:
        return {"rank": self.rank} if parameter.ndim == 2 and min(parameter.shape) >= 2 * self.rank else {}


@dataclass(frozen=True)
class TensorGaLore(_Projected):
    """Project each gradient tensor along all modes by a Tucker decomposition; AdamW's moments are of the core.

    Cores are tensors as they are. A dense model's square matrices and its embedding are folded by the modes of the TT
    and TTM formats: 768 x 768 to 12 x 8 x 8 x 8 x 8 x 12. Bases of such small modes weigh next to nothing.
    """

    name = "tensor-galore"
    source = "George et al., arXiv 2501.02379, section 3"
    ranges = ("fraction in (0, 1]", "every in [1, inf)")

    fraction: float = 0.75  # of each mode's size: the rank of the subspace along it
    every: int = 100  # updates between two choices of the subspace
    scale: float = 2.0  # of the projected updates; the paper's alpha
    learning_rate: float = LEARNING_RATE

    def subspace(self, parameter: Tensor, config: ModelConfig) -> dict[str, Any]:
        folded = {
            (config.hidden_size, config.hidden_size): config.linear_out_modes + config.linear_in_modes,
            (config.vocabulary_size, config.hidden_size): config.embedding_row_modes + config.embedding_column_modes,
        }
        shape = tuple(parameter.shape) if parameter.ndim > 2 else folded.get(tuple(parameter.shape))
        if shape is None or parameter.numel() < LEAST:
            return {}
        return {"shape": shape, "ranks": [max(1, round(self.fraction * size)) for size in shape]}
