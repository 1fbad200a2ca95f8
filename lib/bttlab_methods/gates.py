"""Gates on the bonds of a tensor train, which allow to choose its ranks during training."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn


class BondGates(nn.Module):
    """A diagonal on each internal bond, initially 1; a `core_map` for the layers.

    The diagonals are `speed` times the parameters `gates`, shapes (r_k,): Adam moves each by about the learning rate.
    """

    def __init__(self, ranks: Sequence[int], speed: float = 1.0):
        super().__init__()
        self.gates = nn.ParameterList(torch.full((rank,), 1 / speed) for rank in ranks)
        self.speed = speed

    def diagonals(self) -> list[Tensor]:
        """Return the diagonals, shapes (r_k,)."""
        return [self.speed * gate for gate in self.gates]

    def forward(self, cores: Sequence[Tensor]) -> list[Tensor]:
        """Return the cores, each but the last multiplied by the diagonal on its right."""
        return [*(core * gate for core, gate in zip(cores[:-1], self.diagonals(), strict=True)), cores[-1]]


def bond_weights(cores: Sequence[Tensor]) -> list[Tensor]:
    """Return the relative weight of each index of each internal bond, shapes (r_k,), for cores (r_(k-1), ..., r_k).

    It is the squared norm of the left core's slice times that of the right core's, normalised to the sum 1 per bond.
    """
    weights = []
    for left, right in pairwise(cores):
        products = left.flatten(0, -2).square().sum(0) * right.flatten(1).square().sum(1)
        weights.append(products / products.sum().clamp_min(torch.finfo(products.dtype).tiny))
    return weights


def selected(tensor: Tensor, left: Tensor | None, right: Tensor | None) -> Tensor:
    """Return a core with a selection of the indices of its bonds; None keeps all."""
    if left is not None:
        tensor = tensor.index_select(0, left)
    return tensor if right is None else tensor.index_select(tensor.ndim - 1, right)


def padded(cores: Sequence[Tensor], shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    """Return cores with larger ranks and the same matrix, padded with zeros at the bonds."""
    larger_cores = []
    for core, shape in zip(cores, shapes, strict=True):
        larger = core.new_zeros(tuple(shape))
        larger[tuple(slice(size) for size in core.shape)] = core
        larger_cores.append(larger)
    return larger_cores
