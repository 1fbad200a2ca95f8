"""AdamW whose moments live in a subspace of the gradient: what GaLore and Tensor-GaLore share."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

Factors = Sequence[Tensor | None]


def tucker_factors(tensor: Tensor, ranks: Sequence[int | None]) -> list[Tensor | None]:
    """Return orthonormal bases of a tensor's modes, by a partial Tucker decomposition.

    Parameters
    ----------
    tensor : Tensor, shape (n_1, ..., n_d)
    ranks : sequence of int or None
        One for each mode; None leaves the mode whole. With one rank alone, the basis holds the unfolding's first
        singular vectors; with several, one round of higher-order orthogonal iteration improves on those.

    Returns
    -------
    list of Tensor or None
        Shapes (n_k, r_k).
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


def project(tensor: Tensor, factors: Factors) -> Tensor:
    """Return the core: the tensor times each basis, transposed, along its mode."""
    return _along_modes(tensor, [None if factor is None else factor.t() for factor in factors])


def project_back(core: Tensor, factors: Factors) -> Tensor:
    """Return the tensor of the full shape that a core stands for."""
    return _along_modes(core, factors)


def _along_modes(tensor: Tensor, matrices: Factors) -> Tensor:
    for mode, matrix in enumerate(matrices):
        if matrix is not None:
            tensor = torch.tensordot(matrix, tensor, ([1], [mode])).movedim(0, mode)
    return tensor


class ProjectedAdamW(torch.optim.Optimizer):
    """AdamW, of whose projected parameters the moments are those of the gradient's core in a subspace.

    Parameters
    ----------
    groups : iterable of dict
        "params", and for those to be projected "shape", that of the tensor to which a gradient is folded, and "ranks",
        as for `tucker_factors`.
    lr : float
    every : int
        Updates between two choices of the subspace; the moments stay as they are then (GaLore, section 4.1).
    scale : float
        Of the projected updates.
    betas : (float, float)
    eps, weight_decay : float
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        lr: float,
        every: int,
        scale: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ):
        super().__init__(list(groups), {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self.every, self.scale = every, scale

    @torch.no_grad()
    def step(self, closure=None) -> None:
        """Update the parameters that have a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    if "ranks" in group:
                        self._projected(parameter, group)
                    else:
                        parameter.sub_(self._adam(self.state[parameter], parameter.grad, group), alpha=group["lr"])

    def _projected(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        gradient = parameter.grad.reshape(group["shape"])
        if state.get("step", 0) % self.every == 0:
            state["factors"] = tucker_factors(gradient, group["ranks"])
        direction = self._adam(state, project(gradient, state["factors"]), group)
        update = project_back(direction, state["factors"]).reshape(parameter.shape)
        parameter.sub_(update, alpha=group["lr"] * self.scale)

    @staticmethod
    def _adam(state: dict[str, Any], gradient: Tensor, group: dict[str, Any]) -> Tensor:
        """Return Adam's direction for a gradient (arXiv 1412.6980, algorithm 1), and keep the moments."""
        if "step" not in state:
            state["step"] = 0
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(gradient), torch.zeros_like(gradient)
        state["step"] += 1
        beta1, beta2 = group["betas"]
        state["exp_avg"].lerp_(gradient, 1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        corrected = (state["exp_avg_sq"] / (1 - beta2 ** state["step"])).sqrt_().add_(group["eps"])
        return torch.div(state["exp_avg"], corrected, out=corrected).div_(1 - beta1 ** state["step"])


def projected_facts(optimizer: ProjectedAdamW) -> dict[str, Any]:
    """Return how much of a plain AdamW's moments the projected ones, with their bases, take."""
    plain = kept = 0
    for group in optimizer.param_groups:
        for parameter in group["params"] if "ranks" in group else ():
            state = optimizer.state[parameter]
            if not state:  # of a layer that no step has taken in yet
                continue
            plain += 2 * parameter.numel()
            kept += 2 * state["exp_avg"].numel() + sum(f.numel() for f in state["factors"] if f is not None)
    return {"projected_state_numbers": kept, "adamw_state_numbers_of_these": plain}
