"""What a module computes with beside the parameters that it trains.

Buffers, frozen parameters, numbers and what its file reads become constants of the graph when the module is traced. A
module that is constructed again has to get the same ones: `values_of` returns those that a file can keep,
`put_values` puts them back, and `graph_digest` and `outputs_of` tell whether the rest is the same, too.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from bttlab.compiler.graph import Graph
from bttlab.compiler.operation import Matrix
from bttlab.compiler.trace.check import outputs_of as list_of
from bttlab.model.copies import copy_module
from bttlab.model.threads import one_thread
from bttlab.util.digests import tensors_digest

if TYPE_CHECKING:
    from bttlab.compiler.module import ModuleModel

SHORT = 3  # tokens of the shorter of two samples
LEAST = 0.05  # standard deviation of a parameter whose values are all equal


def values_of(network: nn.Module) -> dict[str, np.ndarray]:
    """Return the values of a module that are neither trained nor float32 parameters.

    Parameters
    ----------
    network : nn.Module
        The module.

    Returns
    -------
    dict of str to np.ndarray
        Its buffers, also those that `state_dict` leaves out, and its frozen parameters of another type than float32, by
        name. Types that NumPy does not have are float32; complex128 has real and imaginary part in a last axis.
    """
    frozen = {name: p for name, p in network.named_parameters() if not p.requires_grad and p.dtype is not torch.float32}
    return {name: _array(tensor) for name, tensor in (frozen | dict(network.named_buffers())).items()}


def _array(tensor: Tensor) -> np.ndarray:
    tensor = tensor.detach().cpu()
    tensor = (tensor.to_dense() if tensor.layout is not torch.strided else tensor).resolve_conj().resolve_neg()
    if tensor.dtype is torch.complex128:  # safetensors has complex64 alone
        tensor = torch.view_as_real(tensor)
    try:
        return tensor.numpy().copy()
    except TypeError:
        return tensor.float().numpy().copy()


@torch.no_grad()
def put_values(network: nn.Module, values: Mapping[str, np.ndarray]) -> str | None:
    """Put values into buffers and parameters of a module.

    Parameters
    ----------
    network : nn.Module
        The module; it changes.
    values : mapping of str to np.ndarray
        By the names of its buffers and parameters, as `values_of` returns them.

    Returns
    -------
    str or None
        Name of a value that the module does not have in this shape, if there is one.
    """
    tensors = dict(network.named_parameters()) | dict(network.named_buffers())
    for name, array in values.items():
        value = torch.from_numpy(np.array(array))
        tensor = tensors.get(name)
        if tensor is not None and tensor.dtype is torch.complex128:
            value = torch.view_as_complex(value) if value.ndim == tensor.ndim + 1 else value
        if tensor is None or tensor.shape != value.shape:
            return name
        value = value.to(tensor)
        if not torch.equal(tensor.detach(), value):  # what is equal stays as it is, such as an expanded tensor
            try:
                tensor.data.copy_(value)
            except RuntimeError:  # several elements have one place in memory
                tensor.data = value
    return None


def names_in_state(network: nn.Module) -> dict[str, str]:
    """Return the names in a module's `state_dict`, each with the name of its parameter or buffer.

    Parameters
    ----------
    network : nn.Module
        The module.

    Returns
    -------
    dict of str to str
        Parameters that layers share are several names in a state, and one of `named_parameters`. The value is empty for
        what is neither a parameter nor a buffer, such as what `get_extra_state` returns.
    """
    tensors = dict(network.named_buffers()) | dict(network.named_parameters())
    names = {id(tensor): name for name, tensor in tensors.items()}
    return {key: names.get(id(value), "") for key, value in network.state_dict(keep_vars=True).items()}


def graph_digest(graph: Graph) -> str:
    """Return the SHA-256 of a graph: of its operations with their numbers, and of its constants.

    Parameters
    ----------
    graph : Graph
        Of a traced module.

    Returns
    -------
    str
        Hexadecimal. Values of parameters that the layout has do not count.
    """
    places = {op.output: number for number, op in enumerate(graph.operations)}

    def plain(value: Any) -> Any:
        if isinstance(value, Matrix):
            return [places.get(value.base or value), value.first, value.features, plain(value.tokens)]
        if isinstance(value, np.generic):
            return repr(value.item())
        if isinstance(value, np.ndarray):
            return tensors_digest({"": value})
        if isinstance(value, Mapping):
            return sorted((str(key), plain(item)) for key, item in value.items())
        if isinstance(value, tuple | list):
            return [plain(item) for item in value]
        if isinstance(value, set | frozenset):
            return sorted(map(str, value))
        if is_dataclass(value):
            return [type(value).__name__, *(plain(getattr(value, field.name)) for field in fields(value))]
        return repr(value) if isinstance(value, str | int | float | None) else type(value).__name__

    operations = [
        [type(op).__name__, op.name, plain(op.inputs), plain(op.output), plain(op.options)] for op in graph.operations
    ]
    tensors = tensors_digest(graph.constants), tensors_digest(graph.folded)
    rest = plain(graph.tokens), graph.sequence_length, sorted(graph.frozen), plain(graph.copies), plain(graph.shapes)
    return hashlib.sha256(json.dumps([operations, tensors, rest]).encode()).hexdigest()


def spreads_of(model: "ModuleModel") -> np.ndarray:
    """Return mean and standard deviation of each trained parameter, by which `outputs_of` draws others.

    Parameters
    ----------
    model : ModuleModel
        The model.

    Returns
    -------
    np.ndarray
        Float32, (parameters, 2), in the order of their names.
    """
    parameters = [array.astype(np.float64) for _, array in sorted(_trained(model).items())]
    found = [(array.mean(), array.std()) if array.size else (0.0, 0.0) for array in parameters]
    return np.array(found, np.float32).reshape(-1, 2)


def _trained(model: "ModuleModel") -> dict[str, np.ndarray]:
    return {name: array for name, array in model.parameters().items() if name not in model.frozen}


@torch.no_grad()
def outputs_of(model: "ModuleModel", spreads: np.ndarray) -> np.ndarray:
    """Return what a module makes of two samples with parameters that depend on `spreads` alone.

    Modules with equal buffers, frozen parameters, numbers and code have equal outputs, whatever parameters they have
    trained. PyTorch computes them in float32, on one thread.

    Parameters
    ----------
    model : ModuleModel
        The model, which does not change.
    spreads : np.ndarray
        As `spreads_of` returns them.

    Returns
    -------
    np.ndarray
        Float32, (values,): for each row of logits, a sum of the classes, with factors.
    """
    network, chance = copy_module(model.network), np.random.default_rng(0)
    parameters, names = dict(network.named_parameters()), sorted(_trained(model))
    for name, (mean, deviation) in zip(names, spreads.tolist(), strict=True):
        drawn = mean + (deviation or LEAST) * chance.standard_normal(tuple(parameters[name].shape))
        parameters[name].data.copy_(torch.from_numpy(np.asarray(drawn, np.float32)))
    words = np.setdiff1d(np.arange(model.least_token, model.vocabulary_size), [model.padding_token or -1])
    sums = []
    device = next(iter(parameters.values())).device
    with one_thread(), torch.random.fork_rng(devices=[]):
        for length in (model.sequence_length, min(SHORT, model.sequence_length)):
            tokens = torch.from_numpy(chance.choice(words, (1, length))).to(device)
            for logits in list_of(network(tokens)):
                if isinstance(logits, Tensor):
                    rows = logits.detach().cpu().double().reshape(-1, logits.shape[-1]).numpy()
                    sums.append(rows @ chance.standard_normal(rows.shape[1]))
    return np.concatenate(sums).astype(np.float32)
