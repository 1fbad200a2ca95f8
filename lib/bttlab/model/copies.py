"""Copies of a user's module: closures, hooks and replaced methods of a copy use the copy."""

import copy
import gc
import math
import types
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from bttlab.model.threads import one_thread
from bttlab.util.errors import BttlabError

TOLERANCE = 1e-3  # of the largest value; the copy and the module call the same functions of torch
SMALLEST = 1e-3  # of the largest gradient: what is smaller is compared with this
SHAKE, SMALL = 0.3, 0.05  # change of a parameter, of its root mean square; in place of it, for one of zeros
MOST = 1_000_000  # objects that are searched for closures
NOT_SEARCHED = (type, types.ModuleType, types.FrameType, types.CodeType, str, bytes, int, float, weakref.ref)


def copy_module(module: nn.Module) -> nn.Module:
    """Return a copy of a module that shares no parameter with it.

    `copy.deepcopy` takes functions as they are: a lambda that reads `self` goes on with the original's parameters. Here
    functions whose closure or defaults lead to the module are copied, too, as attributes, in containers and as hooks.
    Tensors that autograd has computed, such as attention weights that `forward` keeps, are copied without a gradient.

    Parameters
    ----------
    module : nn.Module
        It does not change.

    Returns
    -------
    nn.Module
        The copy. `check_copy` says whether it computes the same.
    """
    functions, leading, tensors = _found(module)
    memo: dict[int, Any] = {id(x): x.detach().clone() for x in tensors}
    cells: dict[int, types.CellType] = {}

    def copied_part(value: Any) -> Any:
        """Return the copy of what leads to the module; of other objects only if the module holds them, too."""
        return copy.deepcopy(value, memo) if id(value) in leading else memo.get(id(value), value)

    for function in functions:
        closure = tuple(cells.setdefault(id(cell), types.CellType()) for cell in function.__closure__ or ())
        made = types.FunctionType(function.__code__, function.__globals__, function.__name__, None, closure or None)
        made.__qualname__, made.__module__, made.__doc__ = function.__qualname__, function.__module__, function.__doc__
        memo[id(function)] = made
    copied = copy.deepcopy(module, memo)
    for function in functions:
        made = memo[id(function)]
        made.__defaults__, made.__kwdefaults__ = map(copied_part, (function.__defaults__, function.__kwdefaults__))
        made.__dict__.update({key: copied_part(value) for key, value in function.__dict__.items()})
        for cell in function.__closure__ or ():
            with suppress(ValueError):  # of an empty one: a variable that is not set yet
                cells[id(cell)].cell_contents = copied_part(cell.cell_contents)
    for layer in copied.modules():
        _replace_methods(vars(layer), memo)
    return copied


def _replace_methods(values: dict, memo: dict[int, Any]) -> None:
    """Give methods that were made of a copied function that function: deepcopy replaces the object alone."""
    for key, value in values.items():
        if isinstance(value, types.MethodType) and id(value.__func__) in memo:
            values[key] = types.MethodType(memo[id(value.__func__)], value.__self__)
        elif isinstance(value, dict) and key not in ("_parameters", "_buffers", "_modules"):
            _replace_methods(value, memo)


def _found(module: nn.Module) -> tuple[list[types.FunctionType], set[int], list[Tensor]]:
    """Search what a module holds.

    Returns the functions that lead to the module or its parameters, the ids of all objects that do, and the tensors
    that autograd has computed.
    """
    core = {id(x) for x in (*module.modules(), *module.parameters(), *module.buffers())}
    left: list[Any] = [module]
    seen: dict[int, Any] = {id(module): module}
    users: dict[int, list[Any]] = {}
    tensors: list[Tensor] = []
    while left and len(seen) < MOST:
        value = left.pop()
        if isinstance(value, Tensor):
            if value.grad_fn is not None:
                tensors.append(value)
            parts: Sequence[Any] = ()
        elif isinstance(value, types.FunctionType):
            parts = [*(value.__closure__ or ()), value.__defaults__, value.__kwdefaults__, value.__dict__]
        else:
            parts = gc.get_referents(value)
        for part in parts:
            if part is None or isinstance(part, NOT_SEARCHED):
                continue
            users.setdefault(id(part), []).append(value)
            if id(part) not in seen:
                seen[id(part)] = part
                left.append(part)
    reaching: set[int] = set()
    keys = [key for key in core if key in seen]
    while keys:  # back from the module to what leads to it
        for user in users.get(keys.pop(), ()):
            if id(user) not in reaching:
                reaching.add(id(user))
                keys.append(id(user))
    functions = [value for key, value in seen.items() if isinstance(value, types.FunctionType) and key in reaching]
    return functions, reaching | core, tensors


def check_copy(copied: nn.Module, module: nn.Module, samples: Sequence[Tensor], kept: Sequence[str] = ()) -> None:
    """Refuse a copy that computes something else than its module when both have other parameters, in the copy's mode.

    A function of the copy that reads the module's parameters then has other results.

    Parameters
    ----------
    copied, module : nn.Module
        Both are left as they were.
    samples : sequence of Tensor
        Token ids, (1, T) each.
    kept : sequence of str
        Frozen parameters whose values do not change, since `forward` may keep what it computes from them.

    Raises
    ------
    BttlabError
        If an output or the gradient of a parameter differs.
    """
    with one_thread(), torch.random.fork_rng(devices=[]):
        modes = [layer.training for layer in copied.modules()]
        theirs, ours = (_results(network, samples, kept, modes) for network in (module, copied))
    largest = max((_largest(x) for name, x in theirs.items() if "gradient" in name), default=0.0)
    for name, wanted in theirs.items():
        # A gradient of 0, such as of the bias of keys, is rounding.
        least = SMALLEST * largest if "gradient" in name else 0.0
        if not _is_close(ours.get(name, torch.zeros_like(wanted)), wanted, least):
            raise BttlabError(
                f"{type(module).__name__} cannot be copied for PyTorch: {name} of the copy differs, so a function "
                "reads the module by a global, a class, a weak reference or a cached function: let it read self"
            )


def _largest(x: Tensor) -> float:
    finite = x[torch.isfinite(x)]
    return float(finite.abs().max()) if finite.numel() else 0.0


def _is_close(found: Tensor, wanted: Tensor, least: float) -> bool:
    finite = torch.isfinite(wanted)
    if found.shape != wanted.shape or not torch.equal(torch.isfinite(found), finite):
        return False
    return _largest((found - wanted)[finite]) <= TOLERANCE * max(_largest(wanted), least)


def _results(
    network: nn.Module, samples: Sequence[Tensor], kept: Sequence[str], modes: Sequence[bool]
) -> dict[str, Tensor]:
    """Return the outputs and gradients of a module whose parameters are changed for these calls.

    What `forward` leaves as attributes is taken back.
    """
    parameters = dict(network.named_parameters())
    attributes = [(layer, dict(vars(layer))) for layer in network.modules()]
    before = {name: parameter.data for name, parameter in parameters.items()}
    generator, found = torch.Generator().manual_seed(0), {}
    try:
        for layer, mode in zip(network.modules(), modes, strict=True):
            layer.training = mode
        for name, parameter in parameters.items():
            noise = torch.rand(parameter.shape, generator=generator)
            if name in kept or not parameter.is_floating_point():
                continue
            size = SHAKE * float(parameter.data.square().mean().sqrt()) if parameter.numel() else 0.0
            change = (size or SMALL) * math.sqrt(12) * (noise - 0.5)
            parameter.data = parameter.data + change.to(parameter)
        trained = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
        with torch.enable_grad():
            for tokens in samples:
                total = torch.zeros(())
                for n, output in enumerate(_tensors(network(tokens))):
                    found[f"output {n} for {tokens.shape[1]} tokens"] = output.detach().clone()
                    weights = torch.linspace(1, 2, output.numel()).mul(7 + n).sin().view(output.shape).to(output)
                    total = total + (output * weights).sum().cpu()
                gradients = torch.autograd.grad(total, list(trained.values()), allow_unused=True)
                for name, gradient in zip(trained, gradients, strict=True):
                    if gradient is not None:
                        found[f"the gradient of {name} for {tokens.shape[1]} tokens"] = gradient
    finally:
        for name, parameter in parameters.items():
            parameter.data = before[name]
        for layer, values in attributes:
            vars(layer).clear()
            vars(layer).update(values)
    return found


def _tensors(outputs: Any) -> Iterator[Tensor]:
    several = outputs.values() if isinstance(outputs, dict) else [outputs] if isinstance(outputs, Tensor) else outputs
    yield from (x for x in several if isinstance(x, Tensor))
