"""The PyTorch network of a model: the paper's transformer, or a copy of the user's module."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bttlab.model.choices import LANGUAGE_MODEL
from bttlab.model.copies import check_copy, copy_module
from bttlab.model.module import ModuleConfig
from bttlab.model.transformer import Transformer
from bttlab.tensor import TTLinear
from bttlab.util.errors import BttlabError


def network_of(model: Any, flow: str = "bidirectional", seed: int = 0) -> nn.Module:
    """Return a network whose `forward` has the arguments and results of `Transformer.forward`.

    Parameters
    ----------
    model : ModelConfig or ModuleModel
        A module is copied, with its parameters and with the closures and hooks that use them; its `forward` returns
        None for logits that it does not compute.
    flow : str
        Order of contraction of a `ModelConfig`'s TT layers, as for `bttlab.tensor.TTLinear`.
    seed : int
        Of the initial parameters of a `ModelConfig`.

    Returns
    -------
    nn.Module
        The network.

    Raises
    ------
    BttlabError
        If a copy of the module cannot be made, or computes something else than the module, or the module has changed
        since its trace.
    """
    if not isinstance(model, ModuleConfig):
        return Transformer(model, flow, seed)
    network: Any = _copy_of(model)
    for layer in network.modules():
        if isinstance(layer, TTLinear):
            layer.flow = flow
    network.ignore_index = model.ignore_index
    network.forward = partial(_logits, network.forward, model.tasks)
    return network


def _copy_of(model: Any) -> nn.Module:
    """Return a copy of a ModuleModel's module that computes the same with other parameters."""
    model.check_unchanged()
    module: nn.Module = model.network
    try:
        copied = copy_module(module)
    except Exception as error:  # of an attribute that cannot be copied, such as a lock
        what = f"{type(error).__name__}: {error}"
        raise BttlabError(
            f"{type(module).__name__} cannot be copied for PyTorch ({what}): take out the attribute that has no copy"
        ) from error
    modes = model.traced.modes  # those in which the module was traced
    for path, layer in copied.named_modules():
        layer.training = modes.get(path, layer.training)
    words = [word for word in range(1, model.vocabulary_size) if word != model.padding_token] or [0]
    device = next(module.parameters()).device
    generator = torch.Generator().manual_seed(0)
    samples = [
        torch.tensor(words)[torch.randint(len(words), (1, length), generator=generator)].to(device)
        for length in sorted({2, model.sequence_length})
    ]
    check_copy(copied, module, samples, list(model.graph.folded))
    return copied


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
