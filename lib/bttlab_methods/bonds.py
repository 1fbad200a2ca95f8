"""Trains with gates on their bonds, and cutting indices of those: what the methods that choose ranks share."""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from bttlab.tensor import TTLinear, TTMEmbedding
from bttlab.tensor.gates import BondGates, selected
from bttlab_methods.parameters import drop_parameters, replace_parameter
from bttlab_methods.training import Training

Train = TTLinear | TTMEmbedding


def trains(training: Training) -> list[Train]:
    """Return the layers whose weights are trains of cores."""
    return [layer for layer in training.model.modules() if isinstance(layer, Train)]


def numbers(layers: list[Train]) -> int:
    """Return how many numbers all cores have."""
    return sum(core.numel() for layer in layers for core in layer.cores)


def ranks(training: Training) -> dict[str, list[int]]:
    """Return the ranks of every train, by its name."""
    layers = training.model.named_modules()
    return {name: [core.shape[-1] for core in layer.cores][:-1] for name, layer in layers if isinstance(layer, Train)}


def put_gates(training: Training, speed: float = 1.0) -> list[Train]:
    """Put gates on every bond, which learn so many times as fast as cores; returns the trains."""
    layers = trains(training)
    for layer in layers:
        layer.core_map = BondGates([core.shape[-1] for core in layer.cores][:-1], speed).to(training.device)
    return layers


def drop_gates(training: Training) -> None:
    """Take the gates away, and their optimizer state."""
    for layer in trains(training):
        drop_parameters(training.optimizer, layer.core_map.parameters())
        layer.core_map = None


def chosen_ranks(training: Training, numbers_at_start: int) -> dict[str, Any]:
    """Return the facts of a method that chose ranks."""
    return {
        "numbers_in_cores_at_start": numbers_at_start,
        "numbers_in_cores": numbers(trains(training)),
        "ranks": ranks(training),
    }


def cut(optimizer: torch.optim.Optimizer, layer: Train, kept: list[Tensor]) -> None:
    """Leave a train some indices of its bonds; its cores, gates and their optimizer state are really cut.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
    layer : TTLinear or TTMEmbedding
        With `BondGates`.
    kept : list of int64 Tensor
        Of each bond, the indices that stay.
    """
    pairs = list(pairwise([None, *kept, None]))
    before = list(layer.cores)
    layer.set_cores([selected(core, *pair) for core, pair in zip(before, pairs, strict=True)])
    for old, new, pair in zip(before, layer.cores, pairs, strict=True):
        replace_parameter(optimizer, old, new, lambda tensor, pair=pair: selected(tensor, *pair))
    gates = layer.core_map
    before = list(gates.gates)
    gates.gates = nn.ParameterList(gate.index_select(0, indices) for gate, indices in zip(before, kept, strict=True))
    for old, new, indices in zip(before, gates.gates, kept, strict=True):
        replace_parameter(optimizer, old, new, lambda tensor, indices=indices: tensor.index_select(0, indices))
