"""What the recorder does with each function of torch: a rule for those that are more than moves of elements."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bttlab.compiler.instruction import max_of
from bttlab.compiler.operation import Matrix, core_names
from bttlab.compiler.ops.elementwise import Add, Multiply, NumberOperand, RowOperand, TokenRowsOperand
from bttlab.compiler.ops.embedding import Embedding, TypeEmbedding
from bttlab.compiler.trace.forms import FORMS, Form
from bttlab.compiler.trace.names import Call, near
from bttlab.compiler.trace.record import EXPANDED, RULES, Recorder, Value, layer
from bttlab.compiler.trace.values import (
    Elements,
    Ids,
    Refusal,
    Scalar,
    Weights,
    as_scalar,
    columns_in,
    in_order,
    kind_of,
    rows_in,
)
from bttlab.tensor import TTLinear, TTMEmbedding

LETTERS = "UVWXYZ"  # axes that the three dots of an equation of einsum stand for
COMPOSED = {  # functions that are others together
    "stack": lambda tensors, dim=0: torch.cat([x.unsqueeze(dim) for x in tensors], dim),
    "glu": lambda x, dim=-1: (parts := x.chunk(2, dim))[0] * torch.sigmoid(parts[1]),
    "leaky_relu": lambda x, negative_slope=0.01, inplace=False: (
        negative_slope * x + (1 - negative_slope) * torch.relu(x)
    ),
}


def _recorded(x: Tensor) -> Tensor:
    """Make a function an activation of its own, of which others are known."""
    return x if isinstance(x, Form) else x.view(x.shape)


def _softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    if threshold < LINEAR:
        raise Refusal(f"softplus of threshold {threshold:g}", f"a threshold of {LINEAR} or more")
    if beta != 1:
        x = _recorded(beta * x)
    return (x.clamp(min=0.0) + F.softplus(-x.abs())) / beta


def _clamp(x: Tensor, min: float | None = None, max: float | None = None, above: Callable = F.relu) -> Tensor:
    """Return x within limits: x as it is between them, and off by the rounding of x beyond.

    `above`: max(x, 0); its derivative at 0 decides that of the limited x at the limits.
    """
    if isinstance(min, int | float) and isinstance(max, int | float) and min > max:
        raise Refusal(f"clamp from {min:g} to {max:g}", "a min that is at most the max")
    y = x
    if min == 0:
        y = F.relu(x) if above is _at_least_0 else _at_least_0(x)
    elif min is not None:
        y = y + above(min - x)
    if max is not None:
        y = y - above(x - max)
    return y


def _at_least_0(x: Tensor) -> Tensor:
    return x.clamp(min=0.0)


def _limited(x: Tensor, min: float, max: float | None = None) -> Tensor:
    """Return x within limits, with the derivative 0 at the limits."""
    return _clamp(x, min, max, _at_least_0)


def _threshold(x: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    if threshold != value:
        raise Refusal(f"threshold {threshold:g} with another value, {value:g},", "x.clamp(min=...)")
    return _limited(x, value)


def _elu(x: Tensor, alpha: float = 1.0, scale: float = 1.0, rate: float = 1.0, inplace: bool = False) -> Tensor:
    slope = alpha * rate  # at 0, where PyTorch takes the derivative from below
    tail = torch.expm1(-F.relu(-(x if rate == 1 else _recorded(rate * x))))
    line = scale * slope * _at_least_0(x)
    return (line if slope == 1 else line + scale * (1 - slope) * F.relu(x)) + scale * alpha * tail


def _celu(x: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    if not 0 < alpha <= STEEPEST:  # e^(x / alpha) - 1 is rounded, and multiplied by alpha
        raise Refusal(f"celu of alpha {alpha:g}", f"an alpha above 0, of {STEEPEST} or less")
    return _elu(x, alpha, rate=1 / alpha)


def _power(x: Tensor, exponent: float) -> Tensor:
    if exponent not in (2, 3, 4):
        raise Refusal(f"power of {exponent:g}", "a power of 2, 3 or 4")
    square = x * x
    return square if exponent == 2 else square * (x if exponent == 3 else square)


STEEPEST = 10  # alpha of CELU: its gradients are off by 1e-5 of the largest
LINEAR = 15  # softplus is x beyond this, to FP32's precision
EXPANDED.update(
    {
        "softplus": _softplus,
        "logsigmoid": lambda x: -_softplus(_recorded(-x)),
        "log_sigmoid": lambda x: -_softplus(_recorded(-x)),
        "elu": _elu,
        "celu": _celu,
        "selu": lambda x, inplace=False: _elu(x, 1.6732632423543772, 1.0507009873554805),
        "square": lambda x: x * x,
        "pow": _power,
        "threshold": _threshold,
        "clamp": _clamp,
        "clamp_min": _clamp,
        "clamp_max": lambda x, max: _clamp(x, max=max),
        "hardtanh": lambda x, min_val=-1.0, max_val=1.0, inplace=False: _limited(x, min_val, max_val),
        "relu6": lambda x, inplace=False: _limited(x, 0.0, 6.0),
        "hardsigmoid": lambda x, inplace=False: _limited(x / 6 + 0.5, 0.0, 1.0),
        "hardswish": lambda x, inplace=False: x * _clamp(x / 6 + 0.5, 0.0, 1.0),
    }
)
FORMS.update({name: function for name, function in EXPANDED.items() if name not in FORMS})


def rule(*names: str, table: dict[str, Callable] = RULES) -> Callable:
    """Make a function of recorder, call and the call's arguments the rule of functions of torch."""

    def register(function: Callable) -> Callable:
        table.update(dict.fromkeys(names, lambda recorder, call: function(recorder, call, *call.args, **call.kwargs)))
        return function

    return register


# ---- layers ---------------------------------------------------------------------------------------------------------


@rule("TTLinear")
def _tt_linear(recorder: Recorder, call: Call, x: Tensor, layer: TTLinear) -> Elements:
    name = _layer_name(recorder, layer)
    matrix = recorder.rows(recorder.elements(x, "linear"))
    return recorder.like(call.result, recorder.graph.linear(matrix, name))


@rule("TTMEmbedding")
def _ttm_embedding(recorder: Recorder, call: Call, ids: Tensor, layer: TTMEmbedding) -> Elements:
    return _table(recorder, call, recorder.value(ids), _layer_name(recorder, layer), layer.num_embeddings)


def _layer_name(recorder: Recorder, layer: Any) -> str:
    """Return the name of a tensor-train layer, of which the cores are parameters."""
    if layer.core_map is not None:
        raise Refusal("a core_map", "the cores as they are")
    names = {recorder.names.get(id(core), "") for core in layer.used_cores()}
    prefixes = {name.rpartition(".cores.")[0] for name in names}
    bias = getattr(layer, "bias", None)
    if len(prefixes) != 1 or (bias is not None and recorder.names.get(id(bias)) != f"{min(prefixes)}.bias"):
        raise Refusal("a tensor-train layer that shares parameters with another", "a layer of its own")
    return prefixes.pop()


@rule("linear")
def _linear(recorder: Recorder, call: Call, x, weight, bias=None) -> Elements:
    return dense(recorder, call.result, x, weight, True, bias)


@rule("addmm")
def _addmm(recorder: Recorder, call: Call, bias, mat1, mat2, *, beta=1, alpha=1) -> Elements:
    if (beta, alpha) != (1, 1):
        raise Refusal("addmm with factors", "beta and alpha of 1")
    return dense(recorder, call.result, mat1, mat2, False, bias)


def dense(recorder: Recorder, result: Tensor, x: Any, weight: Any, is_out_in: bool, bias: Any = None) -> Elements:
    """Record y = x W^T + b; the weight is (out, in), or (in, out) if not `is_out_in`."""
    value = recorder.value(weight)
    if isinstance(value, Weights) and not value.is_plain and not value.offset and not value.function:
        w = weight.detach()
        recorder._set(w, replace(value, factor=1.0))
        with recorder:
            y = value.layer(x, is_out_in) if value.factor == 1 else value.factor * layer(x, w, is_out_in)
            return recorder.value(y if bias is None else y + bias)
    matrix = recorder.rows(recorder.elements(x, "linear"))
    if value is None:
        return _dense_of_constant(recorder, result, matrix, weight.detach() if is_out_in else weight.detach().T, bias)
    w = recorder.of_parameter(weight, "linear with a weight")
    index = w.index if is_out_in else w.index.T
    shape = recorder.graph.shapes[w.name]
    rows, is_transposed = rows_in(index, shape[-1]), False
    if rows is None or rows.columns != shape[-1] or index.shape[1] != shape[-1]:
        rows, is_transposed = rows_in(index.T, shape[-1]), True
        if rows is None or rows.count != shape[0]:
            raise Refusal(f"linear with these elements of {w.name}", "rows of the weight, or all of it")
    first, outputs = (rows.column, rows.columns) if is_transposed else (rows.first, rows.count)
    name, shift = w.name.rpartition(".")[0] or w.name, ""
    if bias is not None:
        b = recorder.of_parameter(bias, "linear with a bias")
        start, shift = int(b.index.reshape(-1)[0]), b.name
        if not torch.equal(b.index.reshape(-1), start + torch.arange(outputs)) or start != first:
            raise Refusal(f"linear with these elements of {b.name}", "the bias of the weight's rows")
    dense = recorder.graph.dense(matrix, recorder.unique(name), w.name, shift, first, outputs, is_transposed)
    return recorder.like(result, dense)


def _dense_of_constant(recorder: Recorder, result: Tensor, x: Matrix, weight: Tensor, bias: Any) -> Elements:
    """Record y = x W^T + b of a constant W, such as one that is computed from frozen parameters."""
    graph, name, shift = recorder.graph, recorder.unique(recorder.name("linear")), ""
    w = graph.constant(weight.cpu().float().contiguous().numpy(), f"weight of {name}")
    if bias is not None and (constant := recorder.constant(bias)) is not None:
        shift = graph.constant(constant.float().numpy(), f"bias of {name}")
    elif bias is not None:
        b = recorder.of_parameter(bias, "linear with a bias")
        shift = b.name
        if not in_order(b.index) or graph.shapes[shift] != (len(weight),):
            raise Refusal(f"linear with these elements of {shift}", "the whole bias")
    return recorder.like(result, graph.dense(x, name, w, shift, 0, len(weight)))


@rule("embedding")
def _embedding(
    recorder: Recorder, call: Call, ids, weight, padding_idx=None, max_norm=None, norm_type=2.0, **options
) -> Value:
    w = recorder.of_parameter(weight, "embedding with a table")
    rows, columns = recorder.graph.shapes[w.name]
    if max_norm is not None or any(options.values()):
        raise Refusal("embedding with max_norm, scale_grad_by_freq or sparse", "nn.Embedding without them")
    if padding_idx == -1 and call.function is torch.embedding:  # none
        padding_idx = None
    padding_idx = padding_idx + rows if padding_idx is not None and padding_idx < 0 else padding_idx
    chosen = recorder.value(ids)
    if chosen is None:  # positions, or a type for all tokens
        if padding_idx is not None and bool((ids == padding_idx).any()):
            raise Refusal(f"row {padding_idx} of a table with padding_idx {padding_idx}", "nn.Embedding without it")
        return replace(w, index=w.index[ids.cpu()])
    if not torch.equal(w.index, torch.arange(rows * columns).view(rows, columns)):
        raise Refusal(f"embedding with these elements of {w.name}", "all rows of a table")
    if isinstance(chosen, Ids) and chosen.is_type and padding_idx is not None:
        raise Refusal("a table of types with padding_idx", "nn.Embedding without it")
    if padding_idx is not None:  # PyTorch does not train its row
        recorder.use_padding(padding_idx)
    prefix, _, kind = w.name.rpartition(".")
    if kind != "weight":
        raise Refusal(f"embedding with the table {w.name}", "nn.Embedding")
    return _table(recorder, call, chosen, prefix, rows)


def _table(recorder: Recorder, call: Call, ids: Value, name: str, rows: int) -> Elements:
    if not isinstance(ids, Ids) or not torch.equal(ids.index.reshape(-1), torch.arange(recorder.sequence_length)):
        raise Refusal("embedding of other ids than the sample's", "the token ids as they are")
    tables = {isinstance(op, TypeEmbedding): op for op in recorder.graph.operations if isinstance(op, Embedding)}
    made = tables.get(ids.is_type)
    if made is not None and made.name == name:  # the same rows again
        return recorder.like(call.result, made.output)
    if made is not None:
        raise Refusal("embedding of the tokens for the second time", "one table")
    other = tables.get(not ids.is_type)
    if ids.divisor:
        _check_types(recorder, ids, name, rows)
    if other is not None and getattr(other, "words", 0) != ids.divisor:
        near = "tokens % n for the table of n words, tokens // n for that of types"
        raise Refusal("two tables of tokens, not of words and of their types,", near)
    if ids.is_type:
        recorder.types = rows
    else:
        recorder.vocabulary = ids.divisor or rows
    return recorder.like(call.result, recorder.graph.embedding(name, ids.divisor, ids.is_type))


def _check_types(recorder: Recorder, ids: Ids, name: str, rows: int) -> None:
    """Raise Refusal unless a dense table has the rows of words or types in token ids type * words + word."""
    if core_names(recorder.graph.shapes, name):
        near = "a dense table, as of cut_vocabulary and compress(..., embeddings=False)"
        raise Refusal("a table in tensor format of words or types in token ids", near)
    if not ids.is_type and rows < ids.divisor:
        raise Refusal(f"a table of {rows} rows for {ids.divisor} words", "as many rows as words")


@rule("cat")
def _cat(recorder: Recorder, call: Call, tensors: Sequence[Tensor], dim: int = 0) -> Value:
    tensors = [x for x in tensors if x.numel()]
    if len(tensors) == 1:
        return recorder.value(tensors[0])
    parts = [recorder.linear(recorder.value(x)) for x in tensors]
    if parts[-1] is not None and all(part is None for part in parts[:-1]):
        return _prepended(recorder, tensors, dim)
    if any(part is None for part in parts):
        kind = next(kind_of(recorder.value(x)) for x, part in zip(tensors, parts, strict=True) if part is None)
        near = "activations; for a class token, a row in front of all tokens, torch.cat([row, x], 1)"
        raise Refusal(f"cat of {kind} and an activation", near)
    if all(part.matrix is parts[0].matrix for part in parts):
        index = torch.cat([part.index for part in parts], dim)
        return Elements(parts[0].matrix, index, torch.cat([part.factor for part in parts], dim))
    joined = [recorder.part_with(part) for part in parts]
    matrices = list(dict.fromkeys(matrix for matrix, _ in joined))
    features = sum(matrix.features for matrix in matrices)
    starts = dict(zip(matrices, itertools.accumulate((m.features for m in matrices), initial=0), strict=False))
    index = [i // m.features * features + i % m.features + starts[m] for m, i in joined]
    found = columns_in(torch.cat(index, dim), features, max_of(matrices[0].tokens))
    if found is None or any(m.tokens != matrices[0].tokens for m in matrices):
        raise Refusal("cat of tokens of different tensors", "cat of features, dim=-1")
    matrix = recorder._columns(matrices, found[0])
    return Elements(matrix, found[1], torch.cat([part.factor for part in parts], dim))


def _prepended(recorder: Recorder, tensors: Sequence[Tensor], dim: int) -> Elements:
    """Record rows of parameters or constants in front of the tokens."""
    *fronts, x = tensors
    matrix = recorder.rows(recorder.elements(x, "cat"))
    sizes = itertools.accumulate((y.numel() for y in tensors), initial=0)
    index = torch.cat([torch.arange(y.numel()).view(y.shape) + n for y, n in zip(tensors, sizes, strict=False)], dim)
    if not in_order(index) or matrix.tokens == 1:
        raise Refusal(
            "cat of a constant or parameter and features", "rows in front of all tokens, torch.cat([row, x], 1)"
        )
    name = recorder.name("cat")
    for front in reversed(fronts):
        value = recorder.value(front)
        if value is None:
            values = front.detach().cpu().float().reshape(-1, matrix.features).numpy()
            table, first, count = recorder.graph.constant(values, f"rows of {name}"), 0, len(values)
        else:
            w = recorder.of_parameter(front, "cat of rows")
            rows = rows_in(w.index.reshape(-1, matrix.features), matrix.features)
            if rows is None:
                raise Refusal(f"cat of these elements of {w.name}", "rows of a parameter, or all of it")
            table, first, count = w.name, rows.first, rows.count
        matrix = recorder.graph.prepend(matrix, table, first, count, recorder.unique(name))
    return Elements(matrix, index)


@rule("dropout", "alpha_dropout", "dropout1d", "feature_dropout", "native_dropout")
def _dropout(recorder: Recorder, call: Call, x, p=0.5, training=True, *_, **__) -> Value:
    if p and training:
        raise Refusal(f"dropout of probability {p:g}")
    return recorder.value(x)


# ---- sums, products, functions --------------------------------------------------------------------------------------


@rule("add")
def _add(recorder: Recorder, call: Call, x, y, *, alpha=1) -> Value:
    if alpha != 1:
        raise Refusal("add with alpha", "a product and a sum")
    values = [recorder.value(x), recorder.value(y)]
    is_constant = values[0] is None and isinstance(values[1], Elements)
    if is_constant or isinstance(values[0], Weights):
        (x, y), values = (y, x), values[::-1]
    if isinstance(values[1], Weights):
        return _with_rows(recorder, recorder.elements(x, "add"), values[1])
    constant = recorder.constant(y)
    if constant is not None and not constant.any():
        return values[0]
    if constant is not None and constant.numel() > 1:
        return _with_constant(recorder, x, constant)
    if constant is None and not all(isinstance(value, Elements) for value in values):
        raise Refusal(f"add of {kind_of(values[1])}", "an activation")
    add = _sum if constant is None else _with_constant
    call = Call(torch.add, "add", (x, y if constant is None else constant), {}, call.result)
    return recorder.elementwise(call, lambda step: add(recorder, *step.args))


@rule("sub", "rsub")
def _difference(recorder: Recorder, call: Call, x, y, *, alpha=1) -> Value:
    x, y = (y, x) if call.name == "rsub" else (x, y)
    values = [recorder.value(x), recorder.value(y)]
    if alpha == 1 and all(isinstance(value, Elements) for value in values):
        call = Call(torch.sub, "sub", (x, y), {}, call.result)
        return recorder.elementwise(call, lambda step: _sum(recorder, *step.args, -1.0))
    if alpha == 1 and isinstance(values[0], Elements) and values[1] is None:
        return _add(recorder, call, x, -y)
    if alpha == 1 and isinstance(values[0], Weights | None) and isinstance(values[1], Elements):
        with recorder:
            return recorder.value(-y + x)
    if alpha == 1 and isinstance(values[0], Elements) and isinstance(values[1], Weights):
        with recorder:
            return recorder.value(-(-x + y))
    return recorder.elementwise(call)


def _sum(recorder: Recorder, x: Any, y: Any, sign: float = 1.0) -> Elements:
    """Record x + y, or x - y."""
    (a, b), index = recorder.operands("add", x, y)
    if sign < 0:
        b = recorder.graph.same(Multiply, b, recorder.unique(recorder.name("minus")), NumberOperand(sign))
    name = recorder.unique(recorder.name("add"))
    return Elements(recorder.graph.add(a, b, name), index)


def _with_constant(recorder: Recorder, x: Any, constant: Tensor) -> Elements:
    """Record x + a constant for each token, such as sinusoids, or for all of them."""
    matrix, index = recorder.operand(x if isinstance(x, Elements) else recorder.elements(x, "add"))
    if not in_order(index):
        raise Refusal("add of a constant tensor to tokens in another order", "the order of the sample")
    value = constant.expand(index.shape).reshape(-1, matrix.features).float().numpy()
    name = recorder.graph.constant(value, f"constant of {recorder.name('add')}")
    return Elements(recorder.graph.same(Add, matrix, name, TokenRowsOperand(name)), index)


def _with_rows(recorder: Recorder, x: Elements, w: Weights) -> Elements:
    """Record x + rows of a table, one row of it for all tokens or heads, or one element of it for all features."""
    if (scalar := _scalar(recorder, x, w)) is not None:
        if w.factor != 1:
            raise Refusal(f"add of a computed parameter, from {w.name},", "a number plus an element of it")
        x = _with_constant(recorder, x, torch.full((), w.offset, dtype=torch.float64)) if w.offset else x
        matrix, index, operand = _scalar(recorder, x, w) if w.offset else scalar
        return Elements(recorder.graph.same(Add, matrix, recorder.unique(recorder.name("add")), operand), index)
    if (of_heads := _head_row(recorder, x, w) or _row_by_features(recorder, x, w)) is not None:
        matrix, index, row = of_heads
        if w.factor != 1 or w.offset:
            raise Refusal(f"add of a computed parameter, from {w.name},", "a row of it")
        shifted = recorder.graph.same(Add, matrix, recorder.unique(recorder.name("add")), row)
        return Elements(shifted, index)
    matrix = recorder.rows(x)
    row = _row_in(w, matrix.features)
    if w.factor != 1 or (w.offset and row is None):
        raise Refusal(f"add of a computed parameter, from {w.name},", "a number plus a row of it")
    if w.offset:
        x = _with_constant(recorder, x, torch.full((matrix.features,), w.offset, dtype=torch.float64))
        matrix = recorder.rows(x)
    if row is not None:
        shifted = recorder.graph.same(Add, matrix, recorder.unique(recorder.name("add")), RowOperand(w.name, row))
        return recorder.like(x.index, shifted)
    rows = rows_in(w.index, recorder.graph.shapes[w.name][-1])
    tokens = max_of(matrix.tokens)
    if rows is None or (rows.count, rows.column, rows.columns) != (tokens, 0, matrix.features):
        raise Refusal(f"add of these elements of {w.name}", "as many rows of a table of positions as there are tokens")
    return recorder.like(x.index, recorder.graph.same(Add, matrix, w.name, TokenRowsOperand(w.name, rows.first)))


def _scalar(recorder: Recorder, x: Elements, w: Weights) -> tuple[Matrix, Tensor, RowOperand] | None:
    """Return the matrix of elements, their index in a sum or product with one element of a parameter, and that.

    None if it is more than one element, or the result has more elements than x.
    """
    if w.element is None:
        return None
    shape = torch.broadcast_shapes(w.index.shape, x.index.shape)
    if math.prod(shape) != x.index.numel():
        return None
    matrix, index = recorder.operand(x)
    return matrix, index.view(shape), recorder.graph.scalar(w.name, w.element, w.function)


def _row_in(w: Weights, features: int) -> int | None:
    """Return which row of a parameter a tensor holds, once or for each token; None if it holds other elements."""
    flat = w.index.reshape(-1, *w.index.shape[-1:] or (1,))
    first = int(flat[0, 0])
    is_row = first % features == 0 and flat.shape[1] == features and (flat == first + torch.arange(features)).all()
    return first // features if is_row else None


def _head_row(recorder: Recorder, x: Elements, w: Weights) -> tuple[Matrix, Tensor, RowOperand] | None:
    """Return a matrix of heads, the index of x in it, and the row of a parameter for each head; None for other x."""
    if w.layer is not None or w.function:
        raise Refusal(f"a row of a computed parameter, from {w.name},", "a row of the parameter as it is")
    size = x.index.shape[-1]
    if x.matrix.features == size or w.index.shape[-1:] != (size,) or w.index.numel() != size:
        return None
    matrix, index, heads = recorder.heads(x, "a row of a parameter")
    row = _row_in(w, size)
    return None if heads == 1 or row is None else (matrix, index, RowOperand(w.name, row, heads))


def _row_by_features(recorder: Recorder, x: Elements, w: Weights) -> tuple[Matrix, Tensor, RowOperand] | None:
    """Return a matrix whose features are in the order of a row of a parameter, the index of x in it, and the row.

    None if x is in the order of its matrix, or if an element's place in the parameter is not that of its feature.
    """
    matrix, index = recorder.part_with(x)
    found = columns_in(index, matrix.features, max_of(matrix.tokens))
    if found is None or in_order(found[1]) or torch.broadcast_shapes(w.index.shape, x.index.shape) != x.index.shape:
        return None
    columns, index = found
    size, wanted = len(columns), w.index.expand(x.index.shape)
    places = torch.empty_like(columns)  # in the parameter, of each column
    places[index % size] = wanted
    first = int(places.min())
    is_row = first % size == 0 and torch.equal(places.sort().values, first + torch.arange(size))
    if not is_row or not torch.equal(places[index % size], wanted):
        return None
    matrix = recorder._columns((matrix,), columns[places.argsort()])
    return matrix, index // size * size + places[index % size] - first, RowOperand(w.name, first // size)


def _composed(recorder: Recorder, call: Call) -> Value:
    with recorder:
        return recorder.value(COMPOSED[call.name](*call.args, **call.kwargs))


RULES.update(dict.fromkeys(COMPOSED, _composed))


@rule("einsum")
def _einsum(recorder: Recorder, call: Call, equation, *factors) -> Value:
    """Record a product of two factors as matmul: axes of both, then of one, and those that are summed."""
    *sides, result = equation.replace(" ", "").replace("->", ",").split(",")
    factors = factors[0] if isinstance(factors[0], list | tuple) else factors
    for n, (axes, x) in enumerate(zip(sides, factors, strict=False)):
        if "..." in axes:
            letters = LETTERS[3 + len(axes) - x.ndim :]
            sides[n], result = axes.replace("...", letters), result.replace("...", letters)
    if len(factors) != 2 or len(sides) != 2 or any(len(set(axes)) < len(axes) for axes in (*sides, result)):
        raise Refusal(f"einsum {equation}", "two factors and an arrow, each axis once, such as btd,ed->bte")
    if isinstance(recorder.value(factors[0]), Weights):
        factors, sides = factors[::-1], sides[::-1]
    (a, b), (left, right) = factors, sides
    size = dict(zip(left, a.shape, strict=True)) | dict(zip(right, b.shape, strict=True))
    both = [axis for axis in left if axis in right and axis in result]
    summed = [axis for axis in left if axis in right and axis not in result]
    rows, columns = [c for c in left if c not in right], [c for c in right if c not in left]
    if set(both + rows + columns) != set(result):
        raise Refusal(f"einsum {equation}", "a sum over axes of both factors")
    sizes = lambda axes: [size[axis] for axis in axes]  # noqa: E731
    with recorder:
        a = a.permute([left.index(c) for c in both + rows + summed])
        b = b.permute([right.index(c) for c in both + summed + columns])
        a = a.reshape(*sizes(both), math.prod(sizes(rows)), math.prod(sizes(summed)))
        y = a @ b.reshape(*sizes(both), a.shape[-1], math.prod(sizes(columns)))
        y = y.reshape(sizes(both + rows + columns))
        return recorder.value(y.permute([(both + rows + columns).index(axis) for axis in result]))


@rule("mul", "div")
def _product(recorder: Recorder, call: Call, x, y, **_) -> Value:
    is_first_constant = recorder.value(x) is None or isinstance(recorder.value(x), Weights)
    if call.name == "mul" and is_first_constant:
        x, y = y, x
    if isinstance(w := recorder.value(y), Weights):
        return _product_with(recorder, call, x, w)
    if (scaled := _product_of_scaled(recorder, call)) is not None:
        return scaled
    value, factor = recorder.value(x), recorder.constant(y)
    if factor is not None and isinstance(value, Elements):
        if factor.numel() > 1 and bool((factor == 1).all()) and call.result.shape == x.shape:
            return value
        if factor.numel() > 1 or value.factor is not None:
            return _times_constants(recorder, call, value, factor if call.name == "mul" else 1 / factor)
    return recorder.elementwise(call)


def _product_with(recorder: Recorder, call: Call, x: Any, w: Weights) -> Elements:
    """Return elements times, or over, a parameter."""
    if call.name == "div":
        near = "a factor in place of a divisor; of a frozen parameter, its reciprocal, x * (1 / w)"
        raise Refusal(f"div by {w.name}", near)
    value = recorder.value(x)
    if w.element is None or not isinstance(value, Elements) or call.result.shape != x.shape:
        return times_row(recorder, recorder.elements(x, "mul"), w)
    return _times_scalar(recorder, value, w)


def _times_scalar(recorder: Recorder, x: Elements, w: Weights) -> Elements:
    """Return elements times an element of a parameter, which is recorded as a product when something else reads it."""
    x, place = x if x.scalar is None else recorder.recorded(x), recorder.name("")
    return replace(x, scalar=Scalar(recorder.at_this_place(lambda x: times_row(recorder, x, w, place)), w))


def _product_of_scaled(recorder: Recorder, call: Call) -> Elements | None:
    """Return s x / |x| as s (x / |x|), s / |x| as s (1 / |x|), and (s / |x|) x as s (x / |x|), for a scalar s.

    None for calls without a scalar, or without a norm of all features.
    """
    found = [recorder.value(x) for x in call.args]
    norms = [v for v in found if isinstance(v, Elements) and v.formula and v.formula.norm and not v.formula.recorded]
    if not norms or call.kwargs:
        return None
    if isinstance(w := found[0], Weights) and w.element is not None and call.result.shape == call.args[1].shape:
        with recorder:
            return _times_scalar(recorder, recorder.value(1 / call.args[1]), w)
    operands = list(call.args)
    for n, value in enumerate(found if call.name == "mul" else found[:1]):
        if isinstance(value, Elements) and value.scalar is not None:
            operands[n] = operands[n].detach()
            recorder._set(operands[n], replace(value, scalar=None))
            product = _product(recorder, replace(call, args=tuple(operands)), *operands)
            return _times_scalar(recorder, product, value.scalar.weights)
    return None


def _times_constants(recorder: Recorder, call: Call, value: Value, factor: Tensor) -> Value:
    """Return elements times constants."""
    x = recorder.linear(value)
    if x is None or call.result.shape != x.index.shape:
        raise Refusal(f"{call.name} by a tensor of another shape", "a constant that has the shape of the activations")
    return replace(x, factor=x.factor * factor.expand(x.index.shape))


@rule("maximum", "minimum", "max", "min")
def _extreme(recorder: Recorder, call: Call, x, y=None, **options) -> Value:
    """Record the larger or the smaller of two; the gradient is divided between them if they are equal."""
    if not isinstance(y, Tensor) or options:
        raise Refusal(call.name, near(call.name))
    name = {"max": "maximum", "min": "minimum"}.get(call.name, call.name)
    call = Call(getattr(torch, name), name, (x, y), {}, call.result)
    return recorder.elementwise(call, lambda step: _limited_by(recorder, *step.args, 1 if name == "maximum" else -1))


@rule("clamp", "clamp_min", "clamp_max")
def _limits(recorder: Recorder, call: Call, x, min=None, max=None) -> Value:
    """Record limits that are tensors, one after the other; those that are numbers are of a function of each element."""
    min, max = (None, min if max is None else max) if call.name == "clamp_max" else (min, max)
    if any(isinstance(recorder.value(limit), Weights) for limit in (min, max)):
        raise Refusal(f"{call.name} with a parameter as a limit", "limits that are numbers, constants or activations")
    limits = [as_scalar(limit) if recorder.value(limit) is None else limit for limit in (min, max)]
    if not any(isinstance(limit, Tensor) and limit.ndim for limit in limits):
        return recorder.elementwise(call)
    with recorder:
        y = x if min is None else x + F.relu(min - x)
        return recorder.value(y if max is None else y - F.relu(y - max))


def _limited_by(recorder: Recorder, x: Tensor, y: Tensor, sign: int) -> Elements:
    """Record x limited by y from below if the sign is 1, from above if it is -1."""
    x, y = (y, x) if recorder.value(x) is None else (x, y)
    limit = as_scalar(y)
    with recorder:
        if recorder.value(y) is None and limit.ndim == 0 and limit == 0:
            limited = _above_0(x) if sign > 0 else x - _above_0(x)
        else:
            limited = x + sign * _above_0(sign * (y - x))
    return recorder.elements(limited, "maximum")


@rule("prelu")
def _prelu(recorder: Recorder, call: Call, x, weight) -> Elements:
    """Record max(x, 0) - w max(-x, 0), with the derivative w at 0."""
    w = recorder.value(weight)
    if w is not None and (not isinstance(w, Weights) or w.element is None):
        raise Refusal("prelu with a slope for each channel", "nn.PReLU() of one slope")
    with recorder:
        return recorder.value(F.relu(x) - weight * _at_least_0(-x))


def _above_0(x: Tensor) -> Tensor:
    """Return max(x, 0), with the derivative 1/2 at 0."""
    return (F.relu(x) + _at_least_0(x)) / 2


@rule("neg")
def _minus(recorder: Recorder, call: Call, x) -> Value:
    value = recorder.value(x)
    is_scaled = isinstance(value, Elements) and value.factor is not None and value.scalar is None
    return replace(value, factor=-value.factor) if is_scaled else recorder.elementwise(call)


def times_row(recorder: Recorder, x: Elements, w: Weights, place: str | None = None) -> Elements:
    """Record x times a row of a parameter for all tokens or heads, or times a number plus multiples of the row.

    An element of a parameter is one factor for all. `place`: of the layer; by default the one that runs.
    """
    found = _scalar(recorder, x, w) or _head_row(recorder, x, w) or _row_by_features(recorder, x, w)
    if found is not None:
        matrix, index, operand = found
    else:
        matrix, index = recorder.rows(x), torch.arange(x.index.numel()).view(x.index.shape)
        row = _row_in(w, matrix.features)
        if row is None:
            raise Refusal(f"mul by these elements of {w.name}", "a factor for each feature, the same for all tokens")
        operand = RowOperand(w.name, row)
    place = recorder.name("") if place is None else place
    unique = lambda what: recorder.unique(".".join(filter(None, (place, what))))  # noqa: E731
    scaled = recorder.graph.same(Multiply, matrix, unique("mul"), operand)
    if w.factor != 1:
        scaled = recorder.graph.same(Multiply, scaled, unique("mul"), NumberOperand(w.factor))
    if w.offset:  # x (1 + w) = x w + x
        x = matrix if w.offset == 1 else recorder.graph.same(Multiply, matrix, unique("mul"), NumberOperand(w.offset))
        scaled = recorder.graph.add(scaled, x, unique("add"))
    return Elements(scaled, index)


RULES.update({name: Recorder.elementwise for name in FORMS if name not in RULES})
