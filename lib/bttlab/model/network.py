"""What computes a model's logits in PyTorch: the paper's transformer, or a copy of the user's own module."""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

from bttlab.model.module import LANGUAGE_MODEL, ModuleConfig
from bttlab.model.transformer import Transformer
from bttlab.tensor import TTLinear


def network_of(model: Any, flow: str = "bidirectional", seed: int = 0) -> nn.Module:
    """Return a network whose `forward` takes and gives what `Transformer.forward` does.

    Parameters
    ----------
    model : ModelConfig or bttlab.compiler.module.ModuleModel
        A module is copied. It gives None in place of logits that it does not have.
    flow : str
        Order of contraction in the TT layers.
    seed : int
        Of the initial parameters of a `ModelConfig`; a module has its own.
    """
    if not isinstance(model, ModuleConfig):
        return Transformer(model, flow, seed)
    network = copy.deepcopy(model.network)
    for layer in network.modules():
        if isinstance(layer, TTLinear):
            layer.flow = flow
    network.forward = partial(_labelled, network.forward, model.tasks)
    return network


def _labelled(forward: Callable, tasks: Sequence[str], tokens: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Call a module's `forward`; return the logits of intents and slots."""
    *several, length = tokens.shape
    outputs = forward(tokens.reshape(-1, length))
    outputs = list(outputs.values()) if isinstance(outputs, dict) else outputs
    intents = slots = None
    for task, logits in zip(tasks, [outputs] if isinstance(outputs, Tensor) else outputs, strict=True):
        logits = logits.reshape(*several, -1, logits.shape[-1])
        if task == "classification":
            intents = logits[..., 0, :]
        elif logits.shape[-2] < length:  # of the words alone
            slots = logits
        else:
            slots = logits[..., :-1, :] if task == LANGUAGE_MODEL else logits[..., 1:, :]
    return intents, slots
