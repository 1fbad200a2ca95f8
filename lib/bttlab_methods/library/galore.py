"""GaLore and Tensor-GaLore: AdamW's moments in a subspace of each gradient."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bttlab.model import ModelConfig
from bttlab_methods.library.optimizers import KeptAdamW
from bttlab_methods.method import Method
from bttlab_methods.training import LEARNING_RATE, Training

LEAST = 1000  # numbers of a parameter that is worth Tensor-GaLore's projection


def tucker_factors(tensor: Tensor, ranks: Sequence[int | None]) -> list[Tensor | None]:
    """Return orthonormal bases of a tensor's modes, by a partial Tucker decomposition.

    With one rank alone, a basis (n_k, r_k) holds the unfolding's first singular vectors; with several, one round of
    higher-order orthogonal iteration improves on those. A rank of None leaves its mode as it is, with the basis None.
    """
    import tensorly  # here: only this needs it
    from tensorly.decomposition import partial_tucker

    modes = [mode for mode, rank in enumerate(ranks) if rank is not None]
    with tensorly.backend_context("pytorch", local_threadsafe=True):  # leaves the caller's backend as it was
        (_, tucker_factors), _ = partial_tucker(
            tensor, [ranks[mode] for mode in modes], modes=modes, n_iter_max=int(len(modes) > 1)
        )
    factors: list[Tensor | None] = [None] * tensor.ndim
    for mode, factor in zip(modes, tucker_factors, strict=True):
        factors[mode] = factor.contiguous()
    return factors


def along_modes(tensor: Tensor, matrices: Sequence[Tensor | None]) -> Tensor:
    """Return a tensor times a matrix along each mode; None leaves the mode as it is."""
    for mode, matrix in enumerate(matrices):
        if matrix is not None:
            tensor = torch.tensordot(matrix, tensor, ([1], [mode])).movedim(0, mode)
    return tensor


class ProjectedAdamW(KeptAdamW):
    """AdamW, of whose projected parameters the moments are those of the gradient's core in a subspace.

    Parameters
    ----------
    groups : iterable of dict
        "params", and for those to be projected "shape", that of the tensor to which a gradient is folded, and "ranks",
        as for `tucker_factors`.
    every : int
        Updates between two choices of the subspace; the moments stay as they are then (GaLore, section 4.1).
    scale : float
        Of the projected updates.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], lr: float, every: int, scale: float, **constants):
        super().__init__(groups, lr, **constants)
        self.every, self.scale = every, scale

    def update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state, gradient = self.state[parameter], parameter.grad
        if "ranks" not in group:
            parameter.sub_(self._adam(state, gradient, group), alpha=group["lr"])
            return
        gradient = gradient.reshape(group["shape"])
        if state.get("step", 0) % self.every == 0:
            state["factors"] = tucker_factors(gradient, group["ranks"])
        bases = [None if factor is None else factor.t() for factor in state["factors"]]
        direction = self._adam(state, along_modes(gradient, bases), group)
        update = along_modes(direction, state["factors"]).reshape(parameter.shape)
        parameter.sub_(update, alpha=group["lr"] * self.scale)

    @staticmethod
    def _adam(state: dict[str, Any], gradient: Tensor, group: dict[str, Any]) -> Tensor:
        # Adam's direction (arXiv 1412.6980, algorithm 1)
        if "step" not in state:
            state["step"] = 0
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(gradient), torch.zeros_like(gradient)
        state["step"] += 1
        beta1, beta2 = group["betas"]
        state["exp_avg"].lerp_(gradient, 1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        corrected = (state["exp_avg_sq"] / (1 - beta2 ** state["step"])).sqrt_().add_(group["eps"])
        return torch.div(state["exp_avg"], corrected, out=corrected).div_(1 - beta1 ** state["step"])


class Projected(Method):
    """Let AdamW's moments live in a subspace of each gradient; a subclass says in which.

    It also has the parameters `every`, `scale` and `learning_rate`.
    """

    family = "gradient compression"
    changes = frozenset({"optimizer"})

    def subspace(self, parameter: nn.Parameter, config: ModelConfig) -> tuple[Sequence, Sequence] | None:
        """Return the shape to which a parameter's gradient is folded, and the ranks as for `tucker_factors`.

        None of a parameter that AdamW trains as it is.
        """
        raise NotImplementedError

    def make_optimizer(self, training: Training) -> torch.optim.Optimizer:
        groups: list[dict[str, Any]] = [{"params": []}]
        for parameter in training.trained:
            subspace = self.subspace(parameter, training.setting.config)
            if subspace is None:
                groups[0]["params"].append(parameter)
            else:
                groups.append({"params": [parameter], "shape": subspace[0], "ranks": subspace[1]})
        return ProjectedAdamW(groups, self.learning_rate, self.every, self.scale)

    def finish(self, training: Training) -> dict[str, Any]:
        plain = kept = 0
        for group in training.optimizer.param_groups:
            for parameter in group["params"] if "ranks" in group else ():
                state = training.optimizer.state[parameter]
                if not state:  # of a layer that no step has taken in yet
                    continue
                plain += 2 * parameter.numel()
                kept += 2 * state["exp_avg"].numel() + sum(f.numel() for f in state["factors"] if f is not None)
        return {"projected_state_numbers": kept, "adamw_state_numbers_of_these": plain}


@dataclass(frozen=True)
class GaLore(Projected):
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
    source = "Zhao et al., arXiv 2403.03507, section 4 and algorithm 2"
    excludes = frozenset({"tensor", "tensor-int8", "tensor-int4", "ranks"})  # cores are no matrices: tensor-galore
    ranges = ("rank in [1, inf)", "every in [1, inf)")

    rank: int = 64
    every: int = 50
    scale: float = 4.0
    learning_rate: float = LEARNING_RATE

    def subspace(self, parameter: nn.Parameter, config: ModelConfig):
        if parameter.ndim != 2 or min(parameter.shape) < 2 * self.rank:
            return None
        rows, columns = parameter.shape
        return parameter.shape, (None, self.rank) if rows >= columns else (self.rank, None)


@dataclass(frozen=True)
class TensorGaLore(Projected):
    """Project each gradient tensor along all modes by a Tucker decomposition; AdamW's moments are of the core.

    Cores of a tensor model are tensors as they are. The square matrices of a dense model and its embedding are folded
    by the modes of the TT and TTM formats: 768 x 768 to 12 x 8 x 8 x 8 x 8 x 12. The bases of such small modes weigh
    next to nothing, where GaLore's basis weighs as much as half its moments.

    Parameters
    ----------
    fraction : float
        Of each mode's size: the rank of the subspace along it.
    every, scale, learning_rate
        As for `GaLore`.
    """

    name = "tensor-galore"
    source = "George et al., arXiv 2501.02379, section 3"
    ranges = ("fraction in (0, 1]", "every in [1, inf)")

    fraction: float = 0.75
    every: int = 100
    scale: float = 2.0
    learning_rate: float = LEARNING_RATE

    def subspace(self, parameter: nn.Parameter, config: ModelConfig):
        if parameter.numel() < LEAST:
            return None
        if parameter.ndim > 2:
            shape = tuple(parameter.shape)
        elif parameter.shape == (config.hidden_size, config.hidden_size):
            shape = config.linear_out_modes + config.linear_in_modes
        elif parameter.shape == (config.vocabulary_size, config.hidden_size):
            shape = config.embedding_row_modes + config.embedding_column_modes
        else:
            return None
        return shape, tuple(None if n == 1 else max(1, round(self.fraction * n)) for n in shape)
