"""2:4 sparsity: of four weights that follow each other, two are 0."""

import itertools
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from bttlab_methods.branches import linear_layers
from bttlab_methods.method import Method
from bttlab_methods.training import Training

SHOWN = (
    "masks: this run shows what 2:4 does to the scores, and nothing of the time that a GPU's sparse tensor cores save; "
    "torch.sparse.to_sparse_semi_structured stores such weights on a GPU"
)


@dataclass(frozen=True)
class SparseTwoFour(Method):
    """Use the two largest of every four weights of a row, and let those that are left out come back (SR-STE).

    The gradient goes straight through to all weights; those that are left out also shrink. What is used is chosen again
    in every step. At the end the others are set to 0.

    Parameters
    ----------
    shrinking : float
        What is added to the gradient of a weight that is left out, over the weight; the paper's lambda.
    """

    name = "sparse-2-4"
    family = "sparse training"
    source = "Zhou et al., arXiv 2102.04010, section 3 (SR-STE); pattern: Mishra et al., arXiv 2104.08378, section 3"
    changes = frozenset({"linear layers", "weights kept"})
    ranges = ("shrinking in [0, 1)",)

    shrinking: float = 2e-4

    def change_model(self, training: Training) -> None:
        """Let the linear layers of encoders and poolers use two of four weights."""
        for layer in linear_layers(training.model):
            if isinstance(layer, nn.Linear):
                layer.forward = partial(self._multiply, layer)

    def _multiply(self, layer: nn.Linear, x: Tensor) -> Tensor:
        return F.linear(x, _TwoOfFour.apply(layer.weight, self.shrinking), layer.bias)

    @torch.no_grad()
    def finish(self, training: Training) -> dict[str, Any]:
        """Set the weights that are left out to 0; return what the others take as a GPU stores them."""
        sparse = [layer for layer in linear_layers(training.model) if isinstance(layer, nn.Linear)]
        for layer in sparse:
            layer.weight.mul_(largest_two_of_four(layer.weight))
        numbers = sum(layer.weight.numel() for layer in sparse)
        kept = 4 * numbers // 2 + numbers // 8  # FP32, and 2 bits for the place of each
        return {"sparse_2_4": SHOWN, "dense_bytes": 4 * numbers, "sparse_bytes": kept}


class _TwoOfFour(torch.autograd.Function):
    """The weight times its mask."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, shrinking: float) -> Tensor:
        used = weight * largest_two_of_four(weight)
        ctx.save_for_backward(weight, used)
        ctx.shrinking = shrinking
        return used

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        weight, used = ctx.saved_tensors
        return gradient + ctx.shrinking * (weight - used), None


def largest_two_of_four(weight: Tensor) -> Tensor:
    """Return which weights, shape (rows, 4 n), are the two largest of their four, by magnitude: bool.

    That is those which at most one other of the four beats; of equals the first does. (`topk` takes twice as long.)
    """
    fours = weight.detach().abs().view(-1, 4).t().contiguous()
    beaten = torch.zeros(fours.shape, dtype=torch.int8, device=weight.device)
    for i, j in itertools.combinations(range(4), 2):
        second = fours[j] > fours[i]
        beaten[i] += second
        beaten[j] += ~second
    return (beaten < 2).t().reshape(weight.shape)
