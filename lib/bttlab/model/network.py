"""The PyTorch network of a model: the paper's transformer, or a copy of the user's module."""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

from bttlab.model.choices import LANGUAGE_MODEL
from bttlab.model.module import ModuleConfig
from bttlab.model.transformer import Transformer
from bttlab.tensor import TTLinear


def network_of(model: Any, flow: str = "bidirectional", seed: int = 0) -> nn.Module:
    """Return a network whose `forward` has the arguments and results of `Transformer.forward`.

    Parameters
    ----------
    model : ModelConfig or ModuleModel
        A module is copied, with its parameters; its `forward` returns None for logits that it does not compute.
    flow : str
        Order of contraction of a `ModelConfig`'s TT layers, as for `bttlab.tensor.TTLinear`.
    seed : int
        Of the initial parameters of a `ModelConfig`.

    Returns
    -------
    nn.Module
        The network.
    """
    if not isinstance(model, ModuleConfig):
        return Transformer(model, flow, seed)
    network = copy.deepcopy(model.network)  # pyright: ignore[reportAttributeAccessIssue]  # a ModuleModel
    for layer in network.modules():
        if isinstance(layer, TTLinear):
            layer.flow = flow
    network.ignore_index = model.ignore_index
    network.forward = partial(_logits, network.forward, model.tasks)
    return network


def _logits(forward: Callable, tasks: Sequence[str], tokens: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Call a module's `forward` and return the logits of intents and slots."""
    *several, length = tokens.shape
    outputs = forward(tokens.reshape(-1, length))
    several_outputs = [outputs] if isinstance(outputs, Tensor) else outputs
    found = several_outputs.values() if isinstance(several_outputs, dict) else several_outputs
    intents = slots = None
    for task, logits in zip(tasks, [x for x in found if isinstance(x, Tensor)], strict=True):  # not a cache of keys
        logits = logits.reshape(*several, -1, logits.shape[-1])
        if task == "classification":
            intents = logits[..., 0, :]
        elif logits.shape[-2] < length:  # already without [CLS]
            slots = logits
        else:
            slots = logits[..., :-1, :] if task == LANGUAGE_MODEL else logits[..., 1:, :]
    return intents, slots
