"""A tensor that is rebuilt at each access, so that writing to it would be lost: it refuses writes."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bttlab.tensor.shapes import ShapeError


def refusal(layer: str) -> ShapeError:
    """Return the error for writing to `weight` of a layer, with the ways to change the cores."""
    if layer == "TTAdapter":
        return ShapeError("weight of TTAdapter is computed from two layers, so writing to it would be lost: call merge")
    make = "TTLinear.from_linear" if layer == "TTLinear" else "TTMEmbedding.from_embedding"
    return ShapeError(
        f"weight of {layer} is rebuilt from its cores, so writing to it would be lost: use {make} or set_cores, "
        "or initialize or freeze its `cores`; for a copy of the weight call clone()"
    )


def read_only(tensor: Tensor, layer: str) -> Tensor:
    """Return the tensor as a `ReadOnly`; itself where PyTorch records operations and a subclass would be in the way."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or torch._C._are_functorch_transforms_active():  # pyright: ignore[reportPrivateImportUsage]
        return tensor
    view = tensor.as_subclass(ReadOnly)
    view.layer = layer
    return view


class ReadOnly(Tensor):
    """A tensor that raises ShapeError if it, or a view of it, is written to. Computed results are plain tensors."""

    layer: str

    def __deepcopy__(self, memo: dict) -> Tensor:
        return self.as_subclass(Tensor).__deepcopy__(memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.as_subclass(Tensor).__reduce_ex__(protocol)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None) -> Any:
        kwargs = kwargs or {}
        sources = list(_read_only_in([*args, *kwargs.values()]))
        first = next(iter([*args, *kwargs.values()])) if _writes(func) or kwargs.get("inplace") else None
        written = list(_read_only_in([first, kwargs.get("out")]))
        if written:
            raise refusal(written[0].layer)
        with torch._C.DisableTorchFunctionSubclass():
            result: Any = func(*args, **kwargs)
        if isinstance(result, np.ndarray):  # of numpy() and np.asarray
            result.flags.writeable = False
        kind: Any = type(result)
        if kind in (list, tuple):  # of views; named tuples have computed values
            return kind(_still_read_only(value, sources) for value in result)
        return _still_read_only(result, sources)


def _writes(func: Any) -> bool:
    """Return True if a function of torch changes its first argument: in place, by an index or an attribute."""
    name = getattr(func, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__")
    augmented = name.startswith("__i") and name not in ("__index__", "__int__", "__invert__")
    return in_place or augmented or name in ("__setitem__", "__set__", "__delete__")


def _read_only_in(values: Iterable[Any]) -> Iterator[ReadOnly]:
    for value in values:
        if isinstance(value, ReadOnly):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _read_only_in(value)


def _still_read_only(value: Any, sources: list[ReadOnly]) -> Any:
    """Return a result as a `ReadOnly` if it is a view of one of the sources."""
    if not isinstance(value, Tensor) or value.layout != torch.strided:
        return value
    with torch._C.DisableTorchFunctionSubclass():
        memory = value.untyped_storage()._cdata
        of = next((source for source in sources if source.untyped_storage()._cdata == memory), None)
        if of is None:
            return value.as_subclass(Tensor)
        view = value.as_subclass(ReadOnly)
    view.layer = of.layer
    return view
