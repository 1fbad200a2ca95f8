"""Ranks cut while training, down to a size target, by what the loss feels of each index."""

import math
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from bttlab.tensor.gates import bond_weights
from bttlab_methods.bonds import Train, chosen_ranks, cut, drop_gates, numbers, put_gates, trains
from bttlab_methods.library.tensor import TensorCompression
from bttlab_methods.training import Training

EVERY = 5  # updates between two cuts
DEAD = 1e-4  # of a bond: an index that carries less is cut at once
MEMORY = 0.95  # of the mean of what the loss feels, over updates


@dataclass(frozen=True)
class RankPruning(TensorCompression):
    """Tensor compression whose ranks are cut while training, down to a size target, by importance.

    All bonds have gates of 1 that no update moves. A gate's gradient tells how the loss would change without its index;
    the mean of its square is the index's importance. The cores are cut, so that their size falls in a straight line to
    the target; indices with the least importance for their parameters go first. At the target the gates are removed and
    training goes on.

    Parameters
    ----------
    rank, embedding_rank : int
        To begin with.
    rate_factor
        As for tensor.
    target : float
        Part of the numbers in the cores that is to be left.
    settled : float
        Part of the budget after which the target is met.
    """

    name = "rank-pruning"
    source = "Molchanov et al., arXiv 1906.10771, section 3.1 (importance of a gate of 1), here of bonds of trains"
    changes = TensorCompression.changes | {"ranks"}
    excludes = frozenset({"galore", "tensor-galore"})  # whose subspaces are of one shape
    ranges = ("target in (0, 1)", "settled in (0, 1)")

    target: float = 0.5
    settled: float = 0.6

    def change_model(self, training: Training) -> None:
        """Put gates on every bond."""
        layers = put_gates(training)
        felt = [[torch.zeros_like(gate) for gate in layer.core_map.gates] for layer in layers]
        training.extra[self.name] = {"numbers": numbers(layers), "settled": False, "felt": felt}

    def before_update(self, training: Training) -> None:
        """Note how much the loss feels each gate, and keep the optimizer from moving it."""
        state = training.extra[self.name]
        if state["settled"]:
            return
        gates = [gate for layer in trains(training) for gate in layer.core_map.gates]
        for gate, felt in zip(gates, chain(*state["felt"]), strict=True):
            # a layer that the step left out has no gradient
            felt.lerp_(torch.zeros_like(gate) if gate.grad is None else gate.grad.square(), 1 - MEMORY)
            gate.grad = None

    def after_update(self, training: Training) -> None:
        """Cut what the size of now does not leave room for; at the target, take the gates away."""
        state = training.extra[self.name]
        if state["settled"] or (training.steps % EVERY and training.progress < self.settled):
            return
        allowed = max(self.target, 1 - (1 - self.target) * training.progress / self.settled)
        cut_to(training.optimizer, trains(training), state["felt"], int(allowed * state["numbers"]))
        if allowed == self.target:
            self._settle(training)

    def _settle(self, training: Training) -> None:
        drop_gates(training)
        training.extra[self.name] |= {"settled": True, "felt": []}

    def finish(self, training: Training) -> dict[str, Any]:
        """Return the ranks that were chosen."""
        if not training.extra[self.name]["settled"]:
            self._settle(training)
        return chosen_ranks(training, training.extra[self.name]["numbers"])


@torch.no_grad()
def cut_to(optimizer: torch.optim.Optimizer, layers: list[Train], felt: list[list[Tensor]], most: int) -> None:
    """Cut indices of bonds, those first that are felt least for what they take, until so many numbers are left.

    Indices that carry next to nothing are cut in any case, and every bond keeps one.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
    layers : list of TTLinear or TTMEmbedding
        With `BondGates`.
    felt : list of list of Tensor, shapes (r_k,)
        For each layer and bond, how much the loss feels each index; cut like the bonds.
    most : int
        Numbers in all cores.
    """
    candidates, keep = [], []
    for i, layer in enumerate(layers):
        keep.append([torch.ones(len(bond), dtype=torch.bool) for bond in felt[i]])
        for k, carried in enumerate(bond_weights(list(layer.cores))):
            taken = (layer.cores[k].numel() + layer.cores[k + 1].numel()) / len(carried)
            best = int(carried.argmax())
            for j, (value, weight) in enumerate(zip(felt[i][k].tolist(), carried.tolist(), strict=True)):
                if j != best:
                    candidates.append((weight >= DEAD, value / taken, i, k, j))
    shapes = [[list(core.shape) for core in layer.cores] for layer in layers]
    left = sum(math.prod(shape) for train in shapes for shape in train)
    for alive, _, i, k, j in sorted(candidates):
        if alive and left <= most:
            break
        keep[i][k][j] = False
        for shape, axis in ((shapes[i][k], -1), (shapes[i][k + 1], 0)):
            left -= math.prod(shape) // shape[axis]
            shape[axis] -= 1
    for i, (layer, bonds) in enumerate(zip(layers, keep, strict=True)):
        if not all(bond.all() for bond in bonds):
            kept = [bond.nonzero()[:, 0].to(felt[i][0].device) for bond in bonds]
            felt[i] = list(map(torch.index_select, felt[i], [0] * len(kept), kept))
            cut(optimizer, layer, kept)
