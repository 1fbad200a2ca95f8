"""Changing what an optimizer trains, its state included, in the middle of a run."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn


def replace_parameter(
    optimizer: torch.optim.Optimizer, old: nn.Parameter, new: nn.Parameter, select: Callable[[Tensor], Tensor]
) -> None:
    """Let an optimizer train another parameter in place of one.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
    old, new : nn.Parameter
    select : callable
        Makes the state of the new parameter from tensors of the old one's shape. A state in which there are tensors of
        other shapes is begun again.
    """
    for group in optimizer.param_groups:
        group["params"] = [new if parameter is old else parameter for parameter in group["params"]]
    state = optimizer.state.pop(old, None)
    if not state:
        return
    tensors = [value for value in state.values() if type(value) is Tensor and value.numel() > 1]
    if any(tensor.shape != old.shape for tensor in tensors):
        return
    optimizer.state[new] = {
        key: select(value) if type(value) is Tensor and value.shape == old.shape else value
        for key, value in state.items()
    }


def drop_parameters(optimizer: torch.optim.Optimizer, parameters: Iterable[nn.Parameter]) -> None:
    """Let an optimizer forget parameters."""
    gone = {id(parameter) for parameter in parameters}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) in gone:
                optimizer.state.pop(parameter, None)
        group["params"] = [parameter for parameter in group["params"] if id(parameter) not in gone]
