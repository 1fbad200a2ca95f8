"""What the recorder does with norms: layers, and those that a module writes out by mean, variance and root."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from bttlab.compiler.graph import Graph
from bttlab.compiler.ops.elementwise import Add, Multiply, NumberOperand, RowOperand
from bttlab.compiler.ops.norm import Norm
from bttlab.compiler.trace.names import Call
from bttlab.compiler.trace.record import Recorder, Value
from bttlab.compiler.trace.rules import rule
from bttlab.compiler.trace.values import Elements, Formula, Refusal, Weights, refuse

WRITTEN = (
    "nn.LayerNorm or nn.RMSNorm, or their formulas with the variance of all features, epsilon under the root, and the "
    "multiplication by the weight after the division"
)
NOT_A_NORM = "this function of all features"

LEAST_NORM = 1e-12  # of a row that is not 0: a limit of norms below it is exact for all others, and for 0
SIZES = [10.0**n for n in range(-10, 18)]  # of rows that are compared: up to those whose squares overflow
TINY, LEAST_EPSILON = 1e-20, 1e-30  # size of a row that is as good as 0; of epsilon, if a row of zeros has no norm


class KindOfNorm(NamedTuple):
    """The norm x / sqrt(mean of x x + epsilon) of a token's features, or of a head's; if centred, of x - mean of x."""

    is_centred: bool
    operands: tuple[str, ...]  # of PyTorch's function, after the shape
    epsilon: float  # if none is given


NORMS = {  # by PyTorch's functions; what a module writes out is compared with them, in this order
    "layer_norm": KindOfNorm(True, ("weight", "bias", "eps"), 1e-5),
    "rms_norm": KindOfNorm(False, ("weight", "eps"), float(torch.finfo(torch.float32).eps)),
}


@rule(*NORMS)
def _norm(recorder: Recorder, call: Call, x: Tensor, normalized_shape, *more, **given) -> Elements:
    kind = NORMS[call.name]
    given |= zip(kind.operands, more, strict=False)
    weight, bias, epsilon = (given.get(name) for name in ("weight", "bias", "eps"))
    epsilon = kind.epsilon if epsilon is None else epsilon
    if len(normalized_shape) > 1:
        raise Refusal("norm over several axes", "nn.LayerNorm(features), or that of a head's features")
    computed = [w for w in map(recorder.value, (weight, bias)) if isinstance(w, Weights) and not w.is_plain]
    if computed:  # such as 1 + weight
        with recorder:
            y = getattr(F, call.name)(x, normalized_shape, eps=epsilon)
            y = y if weight is None else y * weight
            return recorder.value(y if bias is None else y + bias)
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
    return Elements(recorder.graph.norm(matrix, name, *names, epsilon, kind.is_centred, heads), index)


@rule("group_norm")
def _group_norm(recorder: Recorder, call: Call, x: Tensor, num_groups, weight=None, bias=None, eps=1e-5, *_) -> Value:
    """Record the norm of each head of the features, which PyTorch takes over all axes but the first."""
    if x.ndim != 2:
        near = "nn.LayerNorm or nn.RMSNorm for a norm, or that of (tokens, features), x.flatten(0, 1)"
        raise Refusal("group_norm over the tokens", near)
    with recorder:
        y = x.unflatten(1, (num_groups, -1))
        y = F.layer_norm(y, y.shape[2:], eps=eps).flatten(1)
        y = y if weight is None else y * weight
        return recorder.value(y if bias is None else y + bias)


def axes_of(dim: Any, count: int) -> Sequence[int]:
    """Return the axes that a reduction sums, from 0 on; all of them if none is given."""
    dims = range(count) if dim is None else (dim,) if isinstance(dim, int) else dim
    return [axis % count for axis in dims]


@rule("normalize")
def _normalize(recorder: Recorder, call: Call, x, p=2.0, dim=1, eps=1e-12, out=None) -> Elements:
    """Return x / max(|x|, eps), which is x / sqrt(x x + eps eps) unless |x| is near eps."""
    if p != 2 or dim % x.ndim != x.ndim - 1 or not 0 < eps <= LEAST_NORM:
        near = f"the features of a token or head, dim=-1, p=2 and eps up to {LEAST_NORM:g}"
        raise Refusal(f"normalize of dim {dim}, p {p:g} and eps {eps:g}", near)
    function = lambda y: y / (y.square().sum(-1, keepdim=True) + eps**2).sqrt()  # noqa: E731
    return _formula(recorder, recorder.elements(x, call.name), function)


def _formula(recorder: Recorder, x: Elements, function: Callable[[Tensor], Tensor]) -> Elements:
    name = recorder.name("norm")
    norm = recorder.at_this_place(lambda formula: _written(recorder, formula, name))
    formula = Formula(function, lambda: refuse(NOT_A_NORM, WRITTEN), name, norm)
    return Elements(x.matrix, x.index, formula=formula)


@rule("var", "std", "norm", "linalg_norm", "linalg_vector_norm")
def of_rows(recorder: Recorder, call: Call, x, *options, **named) -> Elements:
    """Return a mean, sum or variance of the features of each token, or of each head."""
    value = recorder.value(x)
    if not isinstance(value, Elements):
        value = recorder.elements(x, call.name)
    if call.result.shape != (*x.shape[:-1], 1):
        raise Refusal(f"{call.name} over other axes than the last, or without keepdim=True", WRITTEN)
    before = value.formula.function if value.formula else lambda y: y
    return _formula(recorder, value, lambda y: call.function(before(y), *options, **named))


def _written(recorder: Recorder, value: Elements, name: str) -> Elements:
    """Record a formula that is a number times LayerNorm or RMSNorm, by its values for rows of many sizes."""
    matrix, index, heads = recorder.heads(Elements(value.matrix, value.index), "norm")
    sizes = torch.tensor([TINY, *SIZES], dtype=torch.float64)[:, None]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(len(sizes), matrix.features // heads, generator=generator, dtype=torch.float64) * sizes
    x = x + sizes / 3
    y = value.formula.function(x.reshape(*[1] * (index.ndim - 2), *x.shape))
    if y.numel() != x.numel():
        raise Refusal(NOT_A_NORM, WRITTEN)
    y = y.reshape(x.shape)
    for function, kind in NORMS.items():
        centred = x - x.mean(-1, keepdim=True) if kind.is_centred else x
        variance = centred.square().mean(-1)
        factor = (y * centred).sum(-1) / centred.square().sum(-1)  # scale / sqrt(variance + epsilon)
        slope = (factor[-1] ** -2 - factor[1] ** -2) / (variance[-1] - variance[1])
        scale = float(torch.sign(factor[-1]) / slope.sqrt())
        epsilon = max((scale / float(factor[0])) ** 2, LEAST_EPSILON) if factor[0] else math.nan
        expected = scale * getattr(F, function)(x, x.shape[1:], eps=epsilon)[1:]
        largest = expected.abs().amax(-1, keepdim=True)
        if torch.allclose(y[1:] / largest, expected / largest, 0, 1e-6):
            graph = recorder.graph
            norm = graph.norm(matrix, recorder.unique(name), "", "", epsilon, kind.is_centred, heads)
            if not math.isclose(scale, 1.0, rel_tol=1e-7):
                norm = graph.same(Multiply, norm, recorder.unique(name), NumberOperand(scale))
            return Elements(norm, index)
    raise Refusal(NOT_A_NORM, WRITTEN)


def _is_row(graph: Graph, parameter: str, features: int) -> bool:
    shape = graph.shapes[parameter]
    return shape[-1] == math.prod(shape) == features


def join_norms(graph: Graph) -> None:
    """Give a norm without a scale the factors of the features that alone read it; one without a shift, their shift."""
    for op in list(graph.operations):
        norm = next((n for n in graph.operations if n.output in op.inputs), None)
        if not isinstance(norm, Norm) or norm.bias or len(graph.users(norm.output)) > 1:
            continue
        if not isinstance(op, Add | Multiply) or type(op.operand) is not RowOperand:
            continue
        parameter, is_scale = op.operand.name, isinstance(op, Multiply)
        if (is_scale and norm.weight in graph.shapes) or parameter == norm.weight or op.heads != norm.heads:
            continue
        if not _is_row(graph, parameter, norm.output.features // norm.heads):
            continue
        setattr(norm, "weight" if is_scale else "bias", parameter)
        norm.output = op.output
        graph.operations.remove(op)
