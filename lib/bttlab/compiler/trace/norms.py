"""What the recorder does with norms: layers, and those that a module writes out by mean, variance and root."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bttlab.compiler.graph import Graph
from bttlab.compiler.ops.elementwise import Add, Multiply, Row
from bttlab.compiler.ops.norm import Norm
from bttlab.compiler.trace.names import Call
from bttlab.compiler.trace.record import Recorder
from bttlab.compiler.trace.rules import rule
from bttlab.compiler.trace.values import Elements, LazyElementwise, LazyRowFunction, Refusal

WRITTEN = "nn.LayerNorm or nn.RMSNorm, or their formulas with the variance of all features and epsilon under the root"


@rule("rms_norm")
def _rms_norm(recorder: Recorder, call: Call, x, normalized_shape, weight=None, eps=None) -> Elements:
    epsilon = torch.finfo(torch.float32).eps if eps is None else eps
    return _layer_norm(recorder, call, x, normalized_shape, weight, None, epsilon)


@rule("layer_norm")
def _layer_norm(recorder, call, x, normalized_shape, weight=None, bias=None, eps=1e-5, *_) -> Elements:
    if len(normalized_shape) > 1:
        raise Refusal("norm over several axes", "nn.LayerNorm(features), or that of a head's features")
    matrix, index, heads = recorder.heads(recorder.elements(x, "norm"), "norm")
    features, names = matrix.features // heads, []
    for values in (weight, bias):
        parameter = None if values is None else recorder.of_parameter(values, "norm with a scale or shift")
        names.append("" if parameter is None else parameter.name)
        if parameter is not None and not _is_row(recorder.graph, parameter.name, features):
            raise Refusal(f"norm with rows of {parameter.name}", "a parameter of as many elements as features")
    if names[0] and names[0] == names[1]:
        raise Refusal(f"norm with {names[0]} as scale and shift", "two parameters")
    name = recorder.unique((names[0] or names[1]).rpartition(".")[0] or recorder.name("norm"))
    return Elements(recorder.graph.norm(matrix, name, *names, eps, call.name == "layer_norm", heads), index)


def axes_of(dim: Any, count: int) -> Sequence[int]:
    """Return the axes that a reduction sums, from 0 on; all of them if none is given."""
    dims = range(count) if dim is None else (dim,) if isinstance(dim, int) else dim
    return [axis % count for axis in dims]


@rule("var", "std")
def of_rows(recorder: Recorder, call: Call, x, *options, **named) -> LazyRowFunction:
    """Return a mean, sum or variance of the features of each token, or of each head."""
    value = recorder.value(x)
    if not isinstance(value, Elements | LazyElementwise):
        value = recorder.elements(x, call.name)
    if call.result.shape != (*x.shape[:-1], 1):
        raise Refusal(f"{call.name} over other axes than the last, or without keepdim=True", WRITTEN)
    before = value.function if isinstance(value, LazyElementwise) else lambda y: y
    name = recorder.name("norm")

    def function(y: Tensor) -> Tensor:
        return call.function(before(y), *options, **named)

    record = recorder.at_this_place(lambda formula: _written(recorder, formula, name))
    return LazyRowFunction(value.matrix, value.index, function, record, call.name)


def _written(recorder: Recorder, formula: LazyRowFunction, name: str) -> Elements:
    """Record a formula that is LayerNorm or RMSNorm without parameters, by its values for rows of several sizes."""
    matrix, index, heads = recorder.heads(Elements(formula.matrix, formula.index), "norm")
    sizes = torch.logspace(-3, 2, 6, dtype=torch.float64)[:, None]
    x = (
        torch.randn(6, matrix.features // heads, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        * sizes
    )
    x = (x + sizes / 3).reshape(*[1] * (index.ndim - 2), *x.shape)
    y = formula.function(x)
    for is_centred in (True, False):
        centred = x - x.mean(-1, keepdim=True) if is_centred else x
        variance = centred.square().mean(-1, keepdim=True)
        factor = (y * centred).sum(-1, keepdim=True) / centred.square().sum(-1, keepdim=True)
        epsilon = float((factor**-2 - variance).reshape(-1)[0])
        if epsilon > -1e-12 and torch.allclose(y, centred / (variance + max(epsilon, 0.0)).sqrt(), 1e-7, 1e-9):
            name = recorder.unique(name)
            return Elements(recorder.graph.norm(matrix, name, "", "", max(epsilon, 0.0), is_centred, heads), index)
    raise Refusal("this function of all features", WRITTEN)


def _is_row(graph: Graph, parameter: str, features: int) -> bool:
    shape = graph.shapes[parameter]
    return shape[-1] == math.prod(shape) == features


def join_norms(graph: Graph) -> None:
    """Give a norm without a scale the factors of the features that alone read it; one without a shift, their shift."""
    for op in list(graph.operations):
        norm = next((n for n in graph.operations if n.output in op.inputs), None)
        if not isinstance(norm, Norm) or norm.bias or len(graph.users(norm.output)) > 1:
            continue
        if not isinstance(op, Add | Multiply) or type(op.operand) is not Row:
            continue
        parameter, is_scale = op.operand.name, isinstance(op, Multiply)
        if (is_scale and norm.weight in graph.shapes) or parameter == norm.weight or op.heads != norm.heads:
            continue
        if not _is_row(graph, parameter, norm.output.features // norm.heads):
            continue
        setattr(norm, "weight" if is_scale else "bias", parameter)
        norm.output = op.output
        graph.operations.remove(op)
