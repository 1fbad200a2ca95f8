"""CoMERA: ranks chosen while training, under a size target."""

import math
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from bttlab.methods.library.tensor import TensorCompression
from bttlab.methods.method import MethodError
from bttlab.methods.parameters import drop_parameters, replace_parameter
from bttlab.methods.training import Training
from bttlab.tensor import TTLinear, TTMEmbedding
from bttlab.tensor.gates import BondGates, bond_weights, selected

EPSILON = 0.1  # of the sparsity term: gates below it are as good as gone
EVERY = 5  # updates between two cuts
DEAD = 1e-4  # of a bond: an index that carries less is cut at once
MEMORY = 0.95  # of the mean of what the loss feels, over updates

Layer = TTLinear | TTMEmbedding


@dataclass(frozen=True)
class CoMERA(TensorCompression):
    """Tensor compression whose ranks are chosen while training, cut down to a size target.

    Early, gates on the bonds of all trains make ranks part of what is trained: besides the loss, the size that the
    gates leave is minimised, with the logarithm log(1 + |g| / 0.1), scaled to 1 at g = 1, in place of a count of the
    gates that are not zero. Cores are really cut, so that their size falls in a straight line from the start to the
    target: those indices first whose loss is felt least for the numbers that they take, by the mean of the square of
    gate times gradient (Molchanov et al., arXiv 1906.10771). Once there, the gates are merged into the cores and
    training goes on for the loss alone.

    Parameters
    ----------
    rank, embedding_rank : int
        To begin with.
    rate_factor
        As for tensor.
    target : float
        Part of the numbers in the cores that is to be left.
    strength : float
        Of the size in what is minimised.
    settled : float
        Part of the budget after which the target is met.
    """

    name = "comera"
    source = "after Yang et al., arXiv 2405.14377 (size as a second objective, then training at the target size)"
    changes = TensorCompression.changes | {"ranks"}
    excludes = frozenset({"galore", "tensor-galore"})  # whose subspaces are of one shape

    target: float = 0.5
    strength: float = 0.1
    settled: float = 0.6

    def __post_init__(self) -> None:
        for name in ("target", "settled"):
            if not 0 < getattr(self, name) < 1:
                raise MethodError(f"method comera: {name} is {getattr(self, name)}: it must be between 0 and 1")

    def change_model(self, training: Training) -> None:
        """Put gates on every bond."""
        layers = _layers(training)
        for layer in layers:
            layer.core_map = BondGates([core.shape[-1] for core in layer.cores][:-1]).to(training.device)
        felt = [[torch.zeros_like(entry) for entry in layer.core_map.entries] for layer in layers]
        training.extra[self.name] = {"numbers": _numbers(layers), "settled": False, "felt": felt}

    def before_update(self, training: Training) -> None:
        """Note how much the loss feels each gate, and add the gradient of the size that the gates leave."""
        state = training.extra[self.name]
        if state["settled"]:
            return
        layers = _layers(training)
        entries = [entry for layer in layers for entry in layer.core_map.entries]
        for entry, felt in zip(entries, chain(*state["felt"]), strict=True):
            if entry.grad is None:  # of a layer that the step left out
                entry.grad = torch.zeros_like(entry)
            felt.lerp_((entry.detach() * entry.grad).square(), 1 - MEMORY)
        size = sum(_soft_numbers(layer) for layer in layers) / state["numbers"]
        for entry, gradient in zip(entries, torch.autograd.grad(self.strength * size, entries), strict=True):
            entry.grad += gradient

    def after_update(self, training: Training) -> None:
        """Cut what the size of now does not leave room for; at the target, merge the gates into the cores."""
        state = training.extra[self.name]
        if state["settled"] or (training.steps % EVERY and training.progress < self.settled):
            return
        allowed = max(self.target, 1 - (1 - self.target) * training.progress / self.settled)
        cut_to(training.optimizer, _layers(training), state["felt"], int(allowed * state["numbers"]))
        if allowed == self.target:
            self._settle(training)

    def _settle(self, training: Training) -> None:
        for layer in _layers(training):
            with torch.no_grad():
                for core, merged in zip(layer.cores, layer.core_map(list(layer.cores)), strict=True):
                    core.copy_(merged)
            drop_parameters(training.optimizer, layer.core_map.parameters())
            layer.core_map = None
        training.extra[self.name] |= {"settled": True, "felt": []}

    def finish(self, training: Training) -> dict[str, Any]:
        """Return the ranks that were chosen."""
        if not training.extra[self.name]["settled"]:
            self._settle(training)
        layers = {name: layer for name, layer in training.model.named_modules() if isinstance(layer, Layer)}
        return {
            "numbers_in_cores_at_start": training.extra[self.name]["numbers"],
            "numbers_in_cores": _numbers(list(layers.values())),
            "ranks": {name: [core.shape[-1] for core in layer.cores][:-1] for name, layer in layers.items()},
        }


@torch.no_grad()
def cut_to(optimizer: torch.optim.Optimizer, layers: list[Layer], felt: list[list[Tensor]], most: int) -> None:
    """Cut indices of bonds, those first that are felt least for what they take, until so many numbers are left.

    Indices that carry next to nothing are cut in any case, and every bond keeps one.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
    layers : list of TTLinear or TTMEmbedding
        With `BondGates`.
    felt : list of list of Tensor, shapes (r_k,)
        For each layer and bond; cut like the bonds.
    most : int
        Numbers in all cores.
    """
    candidates, keep = [], []
    for i, layer in enumerate(layers):
        keep.append([torch.ones(len(bond), dtype=torch.bool) for bond in felt[i]])
        for k, carried in enumerate(bond_weights(layer.core_map(list(layer.cores)))):
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
            _cut(optimizer, layer, kept)


def _cut(optimizer: torch.optim.Optimizer, layer: Layer, kept: list[Tensor]) -> None:
    ends = [None, *kept, None]
    pairs = list(pairwise(ends))
    before = list(layer.cores)
    layer.set_cores([selected(core, *pair) for core, pair in zip(before, pairs, strict=True)])
    for old, new, pair in zip(before, layer.cores, pairs, strict=True):
        replace_parameter(optimizer, old, new, lambda tensor, pair=pair: selected(tensor, *pair))
    gates = layer.core_map
    before = list(gates.entries)
    gates.entries = nn.ParameterList(
        entry.index_select(0, indices) for entry, indices in zip(before, kept, strict=True)
    )
    for old, new, indices in zip(before, gates.entries, kept, strict=True):
        replace_parameter(optimizer, old, new, lambda tensor, indices=indices: tensor.index_select(0, indices))


def _soft_numbers(layer: Layer) -> Tensor:
    """Return the layer's numbers, with a gate's logarithm in place of its being there or not."""
    ranks = [torch.log1p(gate.abs() / EPSILON).sum() / math.log1p(1 / EPSILON) for gate in layer.core_map.gates]
    ones = ranks[0].new_ones(())
    modes = [math.prod(core.shape[1:-1]) for core in layer.cores]
    return sum(mode * left * right for mode, left, right in zip(modes, [ones, *ranks], [*ranks, ones], strict=True))


def _layers(training: Training) -> list[Layer]:
    return [layer for layer in training.model.modules() if isinstance(layer, Layer)]


def _numbers(layers: list[Layer]) -> int:
    return sum(core.numel() for layer in layers for core in layer.cores)
