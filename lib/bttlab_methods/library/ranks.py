"""Choosing the ranks of trains of cores while they train, by gates on the bonds: rank-pruning, CoMERA."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from bttlab.tensor import BondGates
from bttlab_methods.layers import Train, numbers, trains
from bttlab_methods.library.tensor import TensorCompression
from bttlab_methods.training import Training

EVERY = 5  # updates between two cuts
MEMORY = 0.95  # of running means over updates: of the loss, and of what it feels of an index
DEAD = 1e-4  # of a bond: an index that carries less is cut at once
SPEED = 10.0  # of CoMERA's gates: at a core's learning rate none would come from 1 to 0 within an epoch
GONE = 0.05  # a gate below it is as good as 0
FOLLOWS = 0.5  # how much the objective counts that does not lead


def put_gates(training: Training, speed: float = 1.0) -> list[Train]:
    """Put gates on every bond, with a `speed` as in `BondGates`; returns the trains."""
    layers = trains(training.model)
    for layer in layers:
        layer.core_map = BondGates([core.shape[-1] for core in layer.cores][:-1], speed).to(training.device)
    return layers


def drop_gates(training: Training) -> None:
    gone = {gate for layer in trains(training.model) for gate in layer.core_map.parameters()}
    for gate in gone:
        training.optimizer.state.pop(gate, None)
    for group in training.optimizer.param_groups:
        group["params"] = [parameter for parameter in group["params"] if parameter not in gone]
    for layer in trains(training.model):
        layer.core_map = None


def chosen_ranks(training: Training, numbers_at_start: int) -> dict[str, Any]:
    """Return the facts of a method that chose ranks: those of every train, by its name."""
    named = {name: layer for name, layer in training.model.named_modules() if isinstance(layer, Train)}
    return {
        "numbers_in_cores_at_start": numbers_at_start,
        "numbers_in_cores": numbers(named.values()),
        "ranks": {name: [core.shape[-1] for core in layer.cores][:-1] for name, layer in named.items()},
    }


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


def cut(optimizer: torch.optim.Optimizer, layer: Train, kept: list[Tensor]) -> None:
    """Leave a train some indices of its bonds; its cores, gates and their optimizer state are really cut.

    `kept` has of each bond the indices that stay, int64. A state that has anything but numbers and tensors of its
    parameter's shape is begun again.
    """
    count, before = len(layer.cores), [*layer.cores, *layer.core_map.gates]
    pairs = [*pairwise([None, *kept, None]), *((indices, None) for indices in kept)]
    parts = [selected(part, *pair) for part, pair in zip(before, pairs, strict=True)]
    shapes = [part.shape for part in before]  # a core stays the same parameter, with another shape
    layer.set_cores(parts[:count])
    layer.core_map.gates = nn.ParameterList(parts[count:])
    replaced = dict(zip(before, [*layer.cores, *layer.core_map.gates], strict=True))
    for group in optimizer.param_groups:
        group["params"] = [replaced.get(parameter, parameter) for parameter in group["params"]]
    for (old, new), shape, pair in zip(replaced.items(), shapes, pairs, strict=True):
        state = optimizer.state.pop(old, {})
        tensors = {key: value for key, value in state.items() if not _is_number(value)}
        if state and all(type(value) is Tensor and value.shape == shape for value in tensors.values()):
            optimizer.state[new] = state | {key: selected(value, *pair) for key, value in tensors.items()}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or (isinstance(value, Tensor) and value.numel() == 1)


class _ChosenRanks(TensorCompression):
    """Tensor compression whose ranks change while it trains."""

    changes = TensorCompression.changes | {"ranks"}
    excludes = frozenset({"galore", "tensor-galore"})  # whose subspaces are of one shape


@dataclass(frozen=True)
class RankPruning(_ChosenRanks):
    """Tensor compression whose ranks are cut while training, down to a size target, by importance.

    All bonds have gates of 1 that no update moves. A gate's gradient tells how the loss would change without its index;
    the mean of its square is the index's importance. The size of the cores falls in a straight line to the target;
    indices with the least importance for their parameters go first. At the target the gates are removed.
    """

    name = "rank-pruning"
    source = "Molchanov et al., arXiv 1906.10771, section 3.1 (importance of a gate of 1), here of bonds of trains"
    ranges = ("target in (0, 1)", "settled in (0, 1)")

    target: float = 0.5  # part of the numbers in the cores that is to be left
    settled: float = 0.6  # part of the budget after which the target is met

    def change_model(self, training: Training) -> None:
        layers = put_gates(training)
        felt = [[torch.zeros_like(gate) for gate in layer.core_map.gates] for layer in layers]
        training.extra[self.name] = {"numbers": numbers(layers), "settled": False, "felt": felt}

    def before_update(self, training: Training) -> None:
        """Note how much the loss feels each gate, and keep the optimizer from moving it."""
        state = training.extra[self.name]
        if state["settled"]:
            return
        gates = [gate for layer in trains(training.model) for gate in layer.core_map.gates]
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
        cut_to(training.optimizer, trains(training.model), state["felt"], int(allowed * state["numbers"]))
        if allowed == self.target:
            self._settle(training)

    def _settle(self, training: Training) -> None:
        drop_gates(training)
        training.extra[self.name] |= {"settled": True, "felt": []}

    def finish(self, training: Training) -> dict[str, Any]:
        if not training.extra[self.name]["settled"]:
            self._settle(training)
        return chosen_ranks(training, training.extra[self.name]["numbers"])


@torch.no_grad()
def cut_to(optimizer: torch.optim.Optimizer, layers: list[Train], felt: list[list[Tensor]], most: int) -> None:
    """Cut indices of bonds until at most `most` numbers are left, first those that are felt least for what they take.

    `felt` has for each layer and bond how much the loss feels each index, shapes (r_k,); it is cut like the bonds.
    Indices that carry next to nothing are cut in any case, and every bond keeps one.
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


@dataclass(frozen=True)
class CoMERA(_ChosenRanks):
    """Tensor compression whose ranks are trained: gates on the bonds, their size a second objective, in two stages.

    A gate for each index of each bond is trained with the cores; indices whose gate nears 0 are cut. The size that the
    gates leave, as a part of that at the start, counts by a relaxation: absolute values in place of being there or not.
    Early, the loss plus `size_weight` times this size is minimised; late, whichever of the two is further above its
    target. The constants `SPEED`, `GONE` and `FOLLOWS` are choices made here.
    """

    name = "comera"
    source = "Yang et al., arXiv 2405.14377, section 3 (multi-objective training, early and late stage)"
    ranges = (
        *("target in (0, 1)", "loss_target in [0, inf)", "early in (0, 1)"),
        *("size_weight in [0, inf)", "core_weight in [0, inf)"),
    )

    # target, loss_target: of the late stage: part of the numbers in the cores, and of the loss when it begins
    target: float = 0.5
    loss_target: float = 0.5
    early: float = 0.5  # part of the budget after which the late stage begins
    size_weight: float = 1.0  # the paper's gamma
    core_weight: float = 1e-5  # the paper's beta, times the cores' squares: gates do not fall while cores rise

    def change_model(self, training: Training) -> None:
        training.extra[self.name] = {"numbers": numbers(put_gates(training, SPEED)), "loss": None, "loss_target": None}

    def objective(self, training: Training, loss: Tensor) -> Tensor:
        state, layers = training.extra[self.name], trains(training.model)
        now = loss.item()
        state["loss"] = now if state["loss"] is None else MEMORY * state["loss"] + (1 - MEMORY) * now
        size = sum(map(relaxed_size, layers)) / state["numbers"]
        of_loss, of_size = 1.0, self.size_weight
        if training.progress >= self.early:
            if state["loss_target"] is None:
                state["loss_target"] = self.loss_target * state["loss"]
            loss_leads = state["loss"] - state["loss_target"] >= size.item() - self.target
            of_loss, of_size = (1 + FOLLOWS, FOLLOWS) if loss_leads else (FOLLOWS, 1 + FOLLOWS)
        squares = sum(core.square().sum() for layer in layers for core in layer.cores)
        return of_loss * loss + of_size * size + self.core_weight * squares

    def after_update(self, training: Training) -> None:
        """Cut the indices whose gates are gone; every bond keeps its largest."""
        if training.steps % EVERY:
            return
        for layer in trains(training.model):
            diagonals = [diagonal.detach().abs() for diagonal in layer.core_map.diagonals()]
            kept = [(one >= min(GONE, float(one.max()))).nonzero()[:, 0] for one in diagonals]
            if any(len(indices) < len(diagonal) for indices, diagonal in zip(kept, diagonals, strict=True)):
                cut(training.optimizer, layer, kept)

    def finish(self, training: Training) -> dict[str, Any]:
        """Put the gates into the cores; return the ranks that were found."""
        with torch.no_grad():
            for layer in trains(training.model):
                for core, gated in zip(layer.cores, layer.used_cores(), strict=True):
                    core.copy_(gated)
        drop_gates(training)
        return chosen_ranks(training, training.extra[self.name]["numbers"])


def relaxed_size(layer: Train) -> Tensor:
    """Return the numbers in a train's cores, where an index of a bond counts as much as its gate: shape ()."""
    bonds = [diagonal.abs().sum() for diagonal in layer.core_map.diagonals()]
    ends = [bonds[0].new_ones(()), *bonds, bonds[0].new_ones(())]
    modes = [math.prod(core.shape[1:-1]) for core in layer.cores]
    return sum(mode * left * right for mode, (left, right) in zip(modes, pairwise(ends), strict=True))
