"""What a module holds from one call of its `forward` to the next, and what a call changes of it."""

import contextvars
import functools
import hashlib
import inspect
import itertools
import random
import types
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import suppress
from operator import length_hint
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

# What layers have beside their own attributes: it is compared otherwise, or has no numbers.
OF_MODULES = frozenset(("_parameters", "_buffers", "_modules", "training"))
DEEPEST = 4  # containers and objects in others
MOST_ITEMS = 1000  # of a container whose items are compared; of larger ones, it is their number
MOST = 100_000  # values that are compared in all
LONGEST = 200  # characters of a text that are kept; of longer ones, it is their digest

Texts = bool | int | float | complex | str | bytes | None


class Snapshot:
    """The values in objects, by their places: numbers, texts, tensors, states of generators, and containers' sizes.

    An object is looked into once, so that a circle ends.
    """

    def __init__(self, with_activations: bool = True):
        self.values: dict[str, str] = {}
        self.generators: set[str] = set()  # the places of those of random numbers
        self._with_activations = with_activations
        self._seen: set[int] = set()

    def add(self, path: str, value: Any, names: Collection[str] | None = None, depth: int = 0) -> None:
        """Add the values in an object; `names`: the attributes of objects that are looked at, if not all."""
        if len(self.values) >= MOST or depth > DEEPEST or isinstance(value, nn.Parameter):
            return
        if isinstance(value, Texts):
            text = repr(value)
            kept = len(text) <= LONGEST
            self.values[path] = text if kept else hashlib.blake2b(text.encode(errors="surrogatepass")).hexdigest()
        elif isinstance(value, Tensor | np.ndarray | np.generic):
            if self._with_activations or getattr(value, "grad_fn", None) is None:
                self.values[path] = _digest(value)
        elif (state := _state_of_generator(value)) is not None:
            self.values[path] = state
            self.generators.add(path)
        elif isinstance(value, itertools.count):
            self.values[path] = repr(value)
        elif isinstance(value, types.GeneratorType):
            for key, item in inspect.getgeneratorlocals(value).items():
                self.add(f"{path}.{key}", item, names, depth + 1)
        elif isinstance(value, contextvars.ContextVar):
            self.add(path, value.get(None), names, depth + 1)
        elif isinstance(value, Iterator) and not hasattr(value, "__dict__"):
            self.values[path] = str(length_hint(value, 0))
        elif id(value) not in self._seen:
            self._seen.add(id(value))
            self._add_items(path, value, names, depth)

    def _add_items(self, path: str, value: Any, names: Collection[str] | None, depth: int) -> None:
        if isinstance(value, list | tuple | set | frozenset | deque | dict):
            self.values[f"the number of items of {path}"] = str(len(value))
            if len(value) > MOST_ITEMS or isinstance(value, set | frozenset):
                return
            is_dict = isinstance(value, dict)
            for key, item in value.items() if is_dict else enumerate(value):
                self.add(f"{path}.{key}" if is_dict else f"{path}[{key}]", item, names, depth + 1)
        if names is None and (isinstance(value, types.ModuleType) or (depth and isinstance(value, type))):
            return
        if isinstance(value, nn.Module) and (depth or names is not None):
            for key, buffer in value._buffers.items():
                self.add(f"{path}.{key}", buffer, names, depth + 1)
        for key, item in _attributes(value):
            if names is None or key in names:
                self.add(f"{path}.{key}".removeprefix("."), item, names, depth + 1)


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object that a call may change."""
    if isinstance(value, functools.partial):
        yield from (("func", value.func), ("args", value.args), ("keywords", value.keywords))
    elif isinstance(value, types.MethodType):
        yield "__self__", value.__self__
    elif isinstance(value, type):
        for kind in value.__mro__:
            if not kind.__module__.startswith(("torch.", "builtins")):
                yield from ((key, item) for key, item in list(vars(kind).items()) if not key.startswith("__"))
    else:
        hidden = OF_MODULES if isinstance(value, nn.Module) else ()
        yield from ((key, item) for key, item in list(getattr(value, "__dict__", {}).items()) if key not in hidden)
        for kind in type(value).__mro__:
            slots = vars(kind).get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if not name.startswith("__") and hasattr(value, name):
                    yield name, getattr(value, name)


def _digest(value: Tensor | np.ndarray | np.generic) -> str:
    """Return type, shape and digest of a tensor; nothing of a kind that has no numbers of its own."""
    if isinstance(value, Tensor):
        kind, array = str(value.dtype), None
        with suppress(NotImplementedError, RuntimeError, TypeError):
            x = value.detach().cpu().resolve_conj().resolve_neg()
            array = (x.double() if x.is_floating_point() else x).numpy()
        if array is None:
            return ""
    else:
        kind, array = str(value.dtype), np.asarray(value)
    data = repr(array.tolist()).encode() if array.dtype.hasobject else np.ascontiguousarray(array).tobytes()
    return f"{kind} {array.shape} {hashlib.blake2b(data).hexdigest()}"


def _state_of_generator(value: Any) -> str | None:
    """Return the state of a generator of random numbers; None for another object."""
    if isinstance(value, random.Random):
        return str(hash(value.getstate()))
    if isinstance(value, torch.Generator):
        return _digest(value.get_state())
    if isinstance(value, np.random.Generator):
        return str(value.bit_generator.state)
    return str(value.get_state(legacy=False)) if isinstance(value, np.random.RandomState) else None


def random_state() -> tuple:
    """Return the state of the generators of random numbers that the whole process has."""
    _, numbers, position, *_ = np.random.get_state()  # noqa: NPY002 (a module may draw from it)
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), numbers.tobytes(), position


class State:
    """What `forward` of a module must leave as it is, at the time when this is made."""

    def __init__(self, module: nn.Module):
        self._module = module
        self._numbers = self._attributes()
        self._tensors = {name: tensor.data.clone() for name, tensor in self._named()}
        self._trained = {name: tensor.requires_grad for name, tensor in self._named()}

    def _attributes(self) -> dict[str, bool | int | float]:
        return {
            f"{path}.{key}".removeprefix("."): value
            for path, layer in self._module.named_modules()
            for key, value in vars(layer).items()
            if type(value) in (bool, int, float)
        }

    def _named(self) -> Iterator[tuple[str, Tensor]]:
        yield from self._module.named_parameters()
        yield from self._module.named_buffers()

    def changed(self) -> str | None:
        """Return the name of a number, a parameter or a buffer that is another one now, or is frozen or trained."""
        for name, value in self._attributes().items():
            if name in self._numbers and value != self._numbers[name]:
                return name
        for name, tensor in self._named():
            if name in self._tensors and not torch.equal(tensor.data, self._tensors[name]):
                return name
            if tensor.requires_grad != self._trained.get(name, tensor.requires_grad):
                return f"requires_grad of {name}"
        return None

    def held(self) -> Snapshot:
        """Return what layers and their classes hold, also in containers and objects."""
        return held(self._module)


def held(module: nn.Module, names: Collection[str] | None = None) -> Snapshot:
    """Return what layers and their classes hold; `names`: the attributes of the user's classes, if not all."""
    found = Snapshot()
    for path, layer in module.named_modules():
        is_of_torch = type(layer).__module__.startswith(("torch.", "bttlab."))
        found.add(type(layer).__name__, type(layer), None if is_of_torch else names)
        found.add(path, layer, None if is_of_torch else names)
    return found


class Traced:
    """What a graph has taken from a module beside trained parameters, at the end of a trace: it must stay as it is.

    `before`: what layers held before the trace; what calls of `forward` have changed since is no constant.
    `read`: the attributes and globals that functions of the user read, as `bttlab.compiler.trace.check.Read`.
    """

    def __init__(self, module: nn.Module, before: Snapshot, read: Any):
        self._names = read.attributes
        self._globals = [
            (variable, {key: x for key, x in variable.values().items() if key in places})
            for variable, places in read.globals
        ]
        self._tensors = dict(_constants(module))
        values = _attributes_of(module, self._names)
        self._values = {place: x for place, x in values.items() if before.values.get(place) == x}
        self._trained = {name: p.requires_grad for name, p in module.named_parameters()}
        self._layers = dict(_functions(module))
        self.modes = {path: layer.training for path, layer in module.named_modules()}

    def changed(self, module: nn.Module) -> str | None:
        """Return the name of a value, layer or hook that is another one now, or is frozen or trained."""
        for name, digest in _constants(module):
            if self._tensors.get(name, digest) != digest:
                return name
        for place, value in _attributes_of(module, self._names).items():
            if self._values.get(place, value) != value:
                return place
        for variable, values in self._globals:
            now = variable.values()
            place = next((key for key, value in values.items() if now.get(key, value) != value), None)
            if place is not None:
                return place
        for name, parameter in module.named_parameters():
            if self._trained.get(name, parameter.requires_grad) != parameter.requires_grad:
                return f"requires_grad of {name}"
        for place, functions in _functions(module):
            if self._layers.get(place, functions) != functions:
                return place
        return None


def _constants(module: nn.Module) -> Iterator[tuple[str, str]]:
    """Yield the name and the digest of each buffer, in whatever precision it is now."""
    for name, buffer in module.named_buffers():
        yield name, _digest(buffer.detach().float() if buffer.is_floating_point() else buffer)


def _attributes_of(module: nn.Module, names: Collection[str]) -> dict[str, str]:
    buffers = {name for name, _ in module.named_buffers()}
    values = held(module, names).values
    return {key: x for key, x in values.items() if key not in buffers and not key.startswith("the number of items")}


def _functions(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the kind of each layer, its own `forward`, and its hooks."""
    for path, layer in module.named_modules():
        name = path or type(layer).__name__
        yield name, type(layer)
        yield f"forward of {name}", vars(layer).get("forward")
        yield f"a hook of {name}", [*layer._forward_pre_hooks.values(), *layer._forward_hooks.values()]


def difference(before: Snapshot, after: Snapshot) -> str | None:
    """Return the place of a value that two snapshots have not alike."""
    return next((key for key, value in after.values.items() if before.values.get(key) != value), None)


def changes(name: str) -> str:
    """Return what a refusal says of a value that `forward` changes."""
    return f"forward changes {name}, which the card does not: keep it as it is while training"


def cause(place: str, is_generator: bool) -> str:
    """Return what a refusal says of a value that is another one after a call."""
    if is_generator:
        return f"forward draws random numbers from {place}: take out what draws them (dropout, noise)"
    return changes(place)
