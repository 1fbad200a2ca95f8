"""Trace a PyTorch module to its graph: `forward` is called once, with stand-ins for tensors that record each operation.

A stand-in has a matrix of the graph and the meaning of its axes; reshapes, transposes and splits into heads change only
the axes. An operation that the machine does not have is an error that names the operation, its place in the module and
the nearest alternative.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from bttlab.compiler.errors import ProgramError
from bttlab.compiler.graph import Graph
from bttlab.compiler.instruction import Register
from bttlab.compiler.matrix import INTENT, SLOTS, Matrix
from bttlab.compiler.module import ModuleModel
from bttlab.compiler.operation import Operation
from bttlab.compiler.ops.attention import Attention
from bttlab.compiler.ops.dense import Dense
from bttlab.compiler.ops.embedding import Embedding
from bttlab.model.module import LANGUAGE_MODEL
from bttlab.tensor import TTLinear, TTMEmbedding

ONE, TOKENS, FEATURES, HEADS, HEAD, KEYS = "one", "tokens", "features", "heads", "head", "keys"
NEAR = {
    "mean": "x[:, 0], the first token",
    "cat": "a sum of two layers",
    "chunk": "a layer for each part",
    "split": "a layer for each part",
    "mul": "a norm's scale",
    "softmax": "scaled_dot_product_attention",
    "sigmoid": "silu or tanh",
    "leaky_relu": "relu",
    "elu": "silu",
    "conv1d": "attention",
    "matmul": "nn.Linear or TTLinear",
    "dropout": "dropout of probability 0: the machine has no random numbers",
}
LIST = "linear layers (TT or dense), embeddings, LayerNorm, RMSNorm, GELU, ReLU, SiLU, tanh, attention and sums"


@dataclass(frozen=True, eq=False)
class Value:
    """Stand-in for a tensor.

    Attributes
    ----------
    axes : tuple of (str, int)
        Kind and size of each axis.
    matrix : Matrix, optional
        None for token ids.
    scores : tuple, optional
        For attention scores: (q, k, scale, causal, whether the softmax is done).
    """

    tracer: "Tracer"
    axes: tuple[tuple[str, int], ...]
    matrix: Matrix | None = None
    scores: tuple | None = None

    # ---- attributes of tensors ----------------------------------------------------------------------------------

    @property
    def shape(self) -> torch.Size:
        """Sizes of the axes."""
        return torch.Size(size for _, size in self.axes)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.axes)

    dtype, device, is_nested, requires_grad, is_cuda = torch.float32, torch.device("cpu"), False, False, False

    def dim(self) -> int:
        """Return the number of axes."""
        return self.ndim

    def size(self, axis: int | None = None):
        """Return the sizes of all axes, or of one."""
        return self.shape if axis is None else self.shape[axis]

    def __len__(self) -> int:
        return self.shape[0]

    def _same(self, *_, **__) -> "Value":
        return self

    contiguous = to = float = clone = detach = type_as = _same

    @classmethod
    def __torch_function__(cls, function: Callable, types: Any, args: Sequence = (), kwargs: dict | None = None):
        return Tracer.current.call(function, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: self.tracer.call_named(name, (self, *args), kwargs)

    # ---- axes ---------------------------------------------------------------------------------------------------

    def view(self, *shape) -> "Value":
        """Return the same elements with other axes."""
        sizes = list(shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape)
        whole = math.prod(self.shape)
        if -1 in sizes:
            sizes[sizes.index(-1)] = whole // -math.prod(sizes)
        rest, axes = [axis for axis in self.axes if axis[1] != 1 or axis[0] != ONE], []
        for size in sizes:
            if size == 1 and not (rest and rest[0][1] == 1):
                axes.append((ONE, 1))
            elif rest and rest[0][1] == size:
                axes.append(rest.pop(0))
            elif len(rest) > 1 and rest[0][0] == HEADS and rest[1][0] == HEAD and size == rest[0][1] * rest[1][1]:
                axes.append((FEATURES, size))
                del rest[:2]
            elif rest and rest[0][0] == FEATURES and size and rest[0][1] % size == 0:
                axes.append((HEADS, size))
                rest[0] = (HEAD, rest[0][1] // size)
            else:
                self.tracer.refuse(f"view of {tuple(self.shape)} as {tuple(sizes)}", "heads split off the features")
        if rest:
            self.tracer.refuse(f"view of {tuple(self.shape)} as {tuple(sizes)}", "heads split off the features")
        return replace(self, axes=tuple(axes))

    reshape = view

    def unflatten(self, axis: int, sizes) -> "Value":
        """Split an axis."""
        axis %= self.ndim
        return self.view(*self.shape[:axis], *sizes, *self.shape[axis + 1 :])

    def flatten(self, start: int = 0, end: int = -1) -> "Value":
        """Merge axes."""
        start, end = start % self.ndim, end % self.ndim
        return self.view(*self.shape[:start], math.prod(self.shape[start : end + 1]), *self.shape[end + 1 :])

    def squeeze(self, axis: int | None = None) -> "Value":
        """Remove an axis of size 1."""
        drop = {n for n, (kind, _) in enumerate(self.axes) if kind == ONE} if axis is None else {axis % self.ndim}
        return replace(self, axes=tuple(one for n, one in enumerate(self.axes) if n not in drop))

    def unsqueeze(self, axis: int) -> "Value":
        """Insert an axis of size 1."""
        axes = list(self.axes)
        axes.insert(axis % (self.ndim + 1), (ONE, 1))
        return replace(self, axes=tuple(axes))

    def permute(self, *order) -> "Value":
        """Return the axes in another order."""
        order = order[0] if len(order) == 1 else order
        return replace(self, axes=tuple(self.axes[n] for n in order))

    def transpose(self, a: int, b: int) -> "Value":
        """Swap two axes."""
        axes = list(self.axes)
        axes[a], axes[b] = axes[b], axes[a]
        return replace(self, axes=tuple(axes))

    @property
    def mT(self) -> "Value":
        """The last two axes swapped."""
        return self.transpose(-1, -2)

    def __getitem__(self, index) -> "Value":
        index = list(index) if isinstance(index, tuple) else [index]
        if Ellipsis in index:
            n = index.index(Ellipsis)
            index[n : n + 1] = [slice(None)] * (self.ndim - len(index) + 1)
        index += [slice(None)] * (self.ndim - len(index))
        axes, matrix = [], self.matrix
        for (kind, size), at in zip(self.axes, index, strict=True):
            if at == slice(None) or (kind == ONE and at in (slice(0, 1), slice(None, 1))):
                axes.append((kind, size))
            elif kind == ONE and at in (0, -1):
                continue
            elif kind == TOKENS and matrix is not None:
                matrix, count = self.tracer.rows(matrix, at, size)
                if isinstance(at, slice):
                    axes.append((TOKENS, count))
            else:
                self.tracer.refuse(f"[{at}] of the {kind}", "rows of tokens: x[:, 0], x[:, 1:] or x[:, :-1]")
        return replace(self, axes=tuple(axes), matrix=matrix)

    # ---- arithmetic ---------------------------------------------------------------------------------------------

    def __add__(self, other):
        return self.tracer.add(self, other)

    __radd__ = __add__

    def __mul__(self, other):
        return self.tracer.scale(self, other)

    __rmul__ = __mul__

    def __truediv__(self, other):
        return self.tracer.scale(self, 1 / other if isinstance(other, int | float) else other)

    def __matmul__(self, other):
        return self.tracer.matmul(self, other)


@dataclass(frozen=True)
class Positions:
    """The first rows of a table of positions."""

    parameter: str


class Tracer:
    """Calls a module's `forward` and records the graph.

    Parameters
    ----------
    module : nn.Module
        `forward(tokens)` takes token ids of shape (1, T).
    sequence_length : int
    """

    current: "Tracer"

    def __init__(self, module: nn.Module, sequence_length: int):
        self.module = module
        self.names = {id(parameter): name for name, parameter in module.named_parameters()}
        self.paths = {id(one): name for name, one in module.named_modules()}
        self.storage = {p.untyped_storage().data_ptr(): name for name, p in module.named_parameters()}
        shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
        self.graph, self.sequence_length = Graph(shapes, sequence_length), sequence_length
        self.place: list[str] = []
        self.used: set[str] = set()
        self.vocabulary = 0

    def refuse(self, what: str, near: str = "") -> None:
        """Raise the error for an operation that the machine does not have."""
        where = ".".join(filter(None, self.place[-1:])) or type(self.module).__name__
        near = near or NEAR.get(what.split()[0], f"one of these: {LIST}")
        raise ProgramError(f"{where}: {what} is no operation of the card; use {near}")

    # ---- running ------------------------------------------------------------------------------------------------

    def run(self) -> Any:
        """Call `forward` with a stand-in for token ids and return its result."""
        tokens = Value(self, ((ONE, 1), (TOKENS, self.sequence_length)))
        with self._patched(), torch.no_grad():
            return self.module(tokens)

    @contextmanager
    def _patched(self) -> Iterator[None]:
        original, tracer = nn.Module.__call__, self

        def call(module: nn.Module, *args, **kwargs):
            tracer.place.append(tracer.paths.get(id(module), type(module).__name__))
            try:
                rule = next((rule for kind, rule in RULES.items() if isinstance(module, kind)), None)
                if rule is None:
                    return original(module, *args, **kwargs)
                return rule(tracer, module, *args, **kwargs)
            finally:
                tracer.place.pop()

        with mock.patch.object(nn.Module, "__call__", call):
            Tracer.current = self
            yield

    def call(self, function: Callable, args: Sequence, kwargs: dict) -> Any:
        """Record a function of torch."""
        name = getattr(function, "__name__", str(function))
        return self.call_named(name.removesuffix("_"), args, kwargs)

    def call_named(self, name: str, args: Sequence, kwargs: dict) -> Any:
        """Record a function of torch, or a method of a tensor, by its name."""
        rule = FUNCTIONS.get(name)
        if rule is None and name in AXES_ONLY:
            return getattr(args[0], name)(*args[1:], **kwargs)
        if rule is None:
            return self.record(name, *args, **kwargs)
        return rule(self, *args, **kwargs)

    def record(self, function: str, *values: Any, **options: Any) -> Value:
        """Record the operation of the graph that computes a function of activations of one shape."""
        kind = Operation.of_function.get(function)
        if kind is None or options or not all(isinstance(x, Value) and x.axes == values[0].axes for x in values):
            self.refuse(function)
        matrices, name = [self.matrix(x, function) for x in values], self._unique(f"{self.place[-1]}.{function}")
        output = Matrix(name, matrices[0].tokens, matrices[0].features)
        return self.like(values[0], self.graph.append(kind(name, tuple(matrices), output)))

    # ---- rules --------------------------------------------------------------------------------------------------

    def named(self, parameter: Tensor) -> str:
        """Return the name of a parameter, and mark it as used."""
        self.used.add(self.names[id(parameter)])
        return self.names[id(parameter)]

    def layer(self, module: nn.Module) -> str:
        """Return the name of a layer and mark its parameters as used; raise ProgramError if it is called twice."""
        name = self.paths[id(module)]
        for parameter in module.parameters():
            self.named(parameter)
        if any(op.name == name for op in self.graph.operations):
            raise ProgramError(
                f"{name} is called twice: the card cannot add the gradients of two calls; use two layers"
            )
        return name

    def matrix(self, x: Any, what: str) -> Matrix:
        """Return the matrix of a stand-in; its axes must be tokens and features."""
        if not isinstance(x, Value) or x.matrix is None:
            self.refuse(f"{what} of no activation")
        kinds = [kind for kind, _ in x.axes if kind != ONE]
        if kinds not in ([TOKENS, FEATURES], [FEATURES]):
            self.refuse(f"{what} over axes {', '.join(kinds)}", "axes (batch, tokens, features)")
        return x.matrix

    def like(self, x: Value, matrix: Matrix) -> Value:
        """Return a stand-in for a matrix, with the axes of another stand-in except for the features."""
        return Value(self, (*x.axes[:-1], (FEATURES, matrix.features)), matrix)

    def rows(self, matrix: Matrix, at: Any, size: int) -> tuple[Matrix, int]:
        """Return rows of a matrix: the first, all but the first, or all but the last."""
        whole, most = self.graph.tokens, self.sequence_length
        chosen = range(size)[at] if isinstance(at, slice) else range(at % size, at % size + 1)
        if chosen == range(size):
            return matrix, size
        if matrix.tokens == whole and chosen == range(1):
            return self.graph.rows(matrix, 0, 1), 1
        for first, rows in ((1, range(1, most)), (0, range(most - 1))):
            if matrix.tokens == whole and chosen == rows:
                return self.graph.rows(matrix, first, Register(-1, 0, 0, most - 1)), most - 1
        self.refuse(f"rows {at} of the tokens", "x[:, 0], x[:, 1:] or x[:, :-1]")

    def positions(self, table: Tensor) -> str | None:
        """Return the name of the parameter of which a tensor is the first rows; None if there is none."""
        return self.storage.get(table.untyped_storage().data_ptr()) if table.storage_offset() == 0 else None

    def add(self, x: Value, y: Any) -> Value:
        """Record x + y: two activations, an activation and positions, or scores and a mask."""
        if isinstance(y, Value) and not isinstance(x, Value):
            x, y = y, x
        if x.scores is not None:
            return self._masked(x, y)
        if isinstance(y, Tensor):
            parameter = self.positions(y)
            if parameter is None or y.shape[-2:] != x.shape[-2:]:
                self.refuse("add of a tensor that is no table of positions", "nn.Embedding of positions")
            y = Positions(parameter)
        if isinstance(y, Positions):
            self.used.add(y.parameter)
            return self.like(x, self.graph.position(self.matrix(x, "add"), y.parameter))
        if not isinstance(y, Value):
            self.refuse("add of a number", "a layer's bias")
        a, b = self.matrix(x, "add"), self.matrix(y, "add")
        name = ".".join(filter(None, (self.place[-1], "add")))
        return self.like(x, self.graph.add(a, b, name))

    def scale(self, x: Value, factor: Any) -> Value:
        """Record the product of scores and a number."""
        if x.scores is None and isinstance(factor, Value):
            return self.record("mul", x, factor)
        if x.scores is None or not isinstance(factor, int | float):
            self.refuse("mul", "a norm's scale, or larger initial values")
        q, k, scale, causal, done = x.scores
        return replace(x, scores=(q, k, scale * factor, causal, done))

    def matmul(self, a: Value, b: Value) -> Value:
        """Record a matrix product of attention: q k^T, or its softmax times v."""
        if isinstance(a, Value) and isinstance(b, Value):
            kinds = [_kinds_of_heads(x) for x in (a, b)]
            if kinds == [[HEADS, TOKENS, HEAD], [HEADS, HEAD, TOKENS]]:
                axes = (*a.axes[:-1], (KEYS, b.shape[-1]))
                return Value(self, axes, a.matrix, (a, b.transpose(-1, -2), 1.0, False, False))
            if a.scores is not None and a.scores[-1] and kinds[1] == [HEADS, TOKENS, HEAD]:
                q, k, scale, causal, _ = a.scores
                return self.attention(q, k, b, causal, scale)
        self.refuse("matmul")

    def softmax(self, x: Value, dim: int = -1, **_) -> Value:
        """Record the softmax of attention scores."""
        if x.scores is None or dim % x.ndim != x.ndim - 1:
            self.refuse("softmax", "logits as they are: the loss has the softmax")
        return replace(x, scores=(*x.scores[:-1], True))

    def _masked(self, x: Value, mask: Any) -> Value:
        q, k, scale, _, done = x.scores
        if not self._is_causal(mask):
            self.refuse("add of a mask that is not causal", "is_causal=True, or no mask")
        return replace(x, scores=(q, k, scale, True, done))

    def masked_fill(self, x: Value, mask: Tensor, value: float) -> Value:
        """Record a causal mask on scores."""
        if x.scores is None or value > -1e4 or not self._is_causal(mask):
            self.refuse("masked_fill", "a causal mask on scores")
        return self._masked(x, mask)

    def _is_causal(self, mask: Any) -> bool:
        if not isinstance(mask, Tensor):
            return False
        size = self.sequence_length
        if tuple(mask.shape[-2:]) != (size, size) or mask.numel() != size * size:
            return False
        mask = mask.reshape(size, size)
        hidden = mask if mask.dtype == torch.bool else mask < -1e4
        above = torch.ones(size, size, dtype=torch.bool).triu(1)
        return bool((hidden == above).all()) or (mask.dtype == torch.bool and bool((mask == ~above).all()))

    def attention(self, q: Value, k: Value, v: Value, causal: bool, scale: float | None = None) -> Value:
        """Record softmax(q k^T / sqrt(head size)) v."""
        for x in (q, k, v):
            if _kinds_of_heads(x) != [HEADS, TOKENS, HEAD]:
                self.refuse("attention over other axes", "axes (batch, heads, tokens, features of a head)")
        heads = math.prod(size for kind, size in q.axes if kind == HEADS)
        head = q.matrix.features // heads
        if scale is not None and not math.isclose(scale, 1 / math.sqrt(head), rel_tol=1e-6):
            self.refuse(f"attention of scale {scale:g}", f"1 / sqrt(head size) = {1 / math.sqrt(head):g}")
        if len({x.shape for x in (q, k, v)}) > 1:
            self.refuse("attention of heads of other sizes", "as many heads and features of q, k and v")
        name = self._unique(".".join(filter(None, (self.place[-1], "attention"))))
        return replace(q, matrix=self.graph.attention(q.matrix, k.matrix, v.matrix, heads, name, causal))

    def _unique(self, name: str) -> str:
        names = {op.name for op in self.graph.operations}
        return next(one for one in (name, *(f"{name}.{n}" for n in range(1, 1 << 10))) if one not in names)

    def activation(self, x: Value, function: str) -> Value:
        """Record an activation."""
        name = self._unique(".".join(filter(None, (self.place[-1], function))))
        return self.like(x, self.graph.function(self.matrix(x, function), function, name))

    def dense(self, x: Value, weight: str, name: str, bias: str = "", first: int = 0, outputs: int = 0) -> Value:
        """Record a dense layer, or one whose weight is a range of rows of a parameter."""
        matrix = self.matrix(x, "linear")
        return self.like(x, self.graph.dense(matrix, name, weight, bias, first, outputs))


def _kinds_of_heads(x: Value) -> list[str]:
    """Return the kinds of the axes, with features that are not split into heads as one head."""
    kinds = [kind for kind, _ in x.axes if kind != ONE]
    return kinds if HEADS in kinds else [HEADS, *(HEAD if kind == FEATURES else kind for kind in kinds)]


def _linear(tracer: Tracer, module: nn.Linear, x: Value) -> Value:
    name = tracer.layer(module)
    bias = tracer.named(module.bias) if module.bias is not None else ""
    return tracer.dense(x, tracer.named(module.weight), name, bias)


def _tt_linear(tracer: Tracer, module: TTLinear, x: Value) -> Value:
    return tracer.like(x, tracer.graph.linear(tracer.matrix(x, "linear"), tracer.layer(module)))


def _embedding(tracer: Tracer, module: nn.Module, ids: Any) -> Any:
    name = tracer.layer(module)
    if isinstance(ids, Tensor):  # positions
        if not torch.equal(ids.reshape(-1), torch.arange(tracer.sequence_length)) or not hasattr(module, "weight"):
            tracer.refuse("embedding of ids that are not the sample's", "torch.arange(tokens.shape[-1])")
        return Positions(tracer.named(module.weight))
    if not isinstance(ids, Value) or ids.matrix is not None:
        tracer.refuse("embedding of an activation")
    if any(isinstance(op, Embedding) for op in tracer.graph.operations):
        tracer.refuse("embedding of the tokens for the second time", "one table")
    tracer.vocabulary = module.num_embeddings
    return Value(tracer, (*ids.axes, (FEATURES, module.embedding_dim)), tracer.graph.embedding(name))


def _norm(tracer: Tracer, module: nn.Module, x: Value) -> Value:
    if module.weight is None or len(module.normalized_shape) != 1:
        tracer.refuse("norm without a scale, or over several axes", "nn.LayerNorm(features)")
    centred = isinstance(module, nn.LayerNorm)
    epsilon = torch.finfo(torch.float32).eps if module.eps is None else module.eps
    return tracer.like(x, tracer.graph.norm(tracer.matrix(x, "norm"), tracer.layer(module), epsilon, centred))


def _activation(name: str) -> Callable:
    def rule(tracer: Tracer, module: nn.Module, x: Value) -> Value:
        if getattr(module, "approximate", "none") != "none":
            tracer.refuse(f"{name} approximated by tanh", "nn.GELU()")
        return tracer.activation(x, name)

    return rule


def _dropout(tracer: Tracer, module: nn.Module, x: Value) -> Value:
    if module.p and module.training:
        tracer.refuse("dropout")
    return x


def _attention(tracer: Tracer, module: nn.MultiheadAttention, q, k, v, *_, attn_mask=None, is_causal=False, **more):
    name = tracer.layer(module)
    if not module.batch_first:
        tracer.refuse("attention with the tokens first", "batch_first=True")
    if more.get("key_padding_mask") is not None:
        tracer.refuse("attention with a padding mask", "none: a sample has no padding")
    if attn_mask is not None and not tracer._is_causal(attn_mask):
        tracer.refuse("attention with a mask that is not causal", "is_causal=True, or no mask")
    weight, bias, size = tracer.named(module.in_proj_weight), module.in_proj_bias, module.embed_dim
    bias = "" if bias is None else tracer.named(bias)
    heads = []
    for n, (part, x) in enumerate(zip(("query", "key", "value"), (q, k, v), strict=True)):
        y = tracer.dense(x, weight, f"{name}.{part}", bias, n * size, size)
        heads.append(y.unflatten(-1, (module.num_heads, size // module.num_heads)).transpose(-2, -3))
    context = tracer.attention(*heads, causal=attn_mask is not None or is_causal).transpose(-2, -3).flatten(-2)
    return module.out_proj(context), None


RULES: dict[type, Callable] = {
    TTLinear: _tt_linear,
    nn.Linear: _linear,
    TTMEmbedding: _embedding,
    nn.Embedding: _embedding,
    nn.LayerNorm: _norm,
    nn.RMSNorm: _norm,
    nn.GELU: _activation("gelu"),
    nn.ReLU: _activation("relu"),
    nn.SiLU: _activation("silu"),
    nn.Tanh: _activation("tanh"),
    nn.Dropout: _dropout,
    nn.MultiheadAttention: _attention,
}


def _sdpa(tracer: Tracer, q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, **_) -> Value:
    if dropout_p:
        tracer.refuse("dropout")
    if attn_mask is not None and not tracer._is_causal(attn_mask):
        tracer.refuse("attention with a mask that is not causal", "is_causal=True, or no mask")
    return tracer.attention(q, k, v, is_causal or attn_mask is not None, scale)


def _gelu(tracer: Tracer, x: Value, approximate: str = "none") -> Value:
    if approximate != "none":
        tracer.refuse(f"gelu approximated by {approximate}", "gelu")
    return tracer.activation(x, "gelu")


def _tied(tracer: Tracer, x: Value, weight: Tensor, bias: Tensor | None = None) -> Value:
    if id(weight) not in tracer.names:
        tracer.refuse("linear with a weight that is no parameter", "nn.Linear")
    name = tracer._unique(".".join(filter(None, (tracer.place[-1], "linear"))))
    return tracer.dense(x, tracer.named(weight), name, "" if bias is None else tracer.named(bias))


FUNCTIONS: dict[str, Callable] = {
    "gelu": _gelu,
    **{
        name: lambda tracer, x, *_, function=name, **__: tracer.activation(x, function)
        for name in ("relu", "silu", "tanh")
    },
    "dropout": lambda tracer, x, p=0.5, training=True, *_: x if not (p and training) else tracer.refuse("dropout"),
    "scaled_dot_product_attention": _sdpa,
    "linear": _tied,
    "softmax": Tracer.softmax,
    "masked_fill": Tracer.masked_fill,
    "matmul": Tracer.matmul,
    "bmm": Tracer.matmul,
    "add": Tracer.add,
    "__add__": Tracer.add,
    "__radd__": Tracer.add,
}
AXES_ONLY = {"view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "permute", "transpose", "swapaxes"}


def trace(module: nn.Module, sequence_length: int) -> ModuleModel:
    """Return the model of a module: its graph and the limits of its samples.

    Parameters
    ----------
    module : nn.Module
        `forward(tokens)` maps token ids (batch, T) to logits: (batch, classes) of a label for each sample, (batch, T,
        classes) of a label for each token, or both in a tuple. Logits for each token are those of the words, from the
        second token on; if attention is causal, those of the next token.
    sequence_length : int
        Tokens of the longest sample.

    Raises
    ------
    ProgramError
        If it fails in PyTorch, or has an operation that the machine does not have; the message names its place in the
        module and an alternative.
    """
    for length in (2, sequence_length):
        _try(module, length)
    tracer = Tracer(module, sequence_length)
    outputs = tracer.run()
    outputs = list(outputs.values()) if isinstance(outputs, dict) else outputs
    outputs = list(outputs) if isinstance(outputs, tuple | list) else [outputs]
    graph, limits, tasks = tracer.graph, {}, []
    attentions = [op for op in graph.operations if isinstance(op, Attention)]
    is_causal = bool(attentions) and all(op.causal for op in attentions)
    for output in outputs:
        loss, task = _classifier(tracer, output, is_causal)
        if loss in limits:
            raise ProgramError(f"{type(module).__name__} returns two outputs for one label: return one")
        limits[loss] = graph.losses[loss].output.features
        tasks.append(task)
    graph.drop_unused()
    unused = [name for name in graph.shapes if name not in tracer.used]
    if unused:
        raise ProgramError(f"{type(module).__name__}.forward does not use {unused[0]}: remove this parameter")
    return ModuleModel(
        type(module).__name__,
        "",
        tasks,
        sequence_length,
        tracer.vocabulary,
        limits.get(INTENT, 1),
        limits.get(SLOTS, 1),
        {name: list(shape) for name, shape in graph.shapes.items()},
        module,
        graph,
    )


def _try(module: nn.Module, length: int) -> None:
    """Call a module in PyTorch: the stand-ins do not check that sizes match."""
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            module(torch.zeros(1, length, dtype=torch.long))
    except Exception as error:
        raise ProgramError(
            f"{type(module).__name__}.forward fails in PyTorch on {length} tokens ({type(error).__name__}: {error})"
        ) from error


def _classifier(tracer: Tracer, output: Any, is_causal: bool) -> tuple[str, str]:
    """Turn the dense layer of an output into a classifier; return its loss and task."""
    graph, name = tracer.graph, type(tracer.module).__name__
    if not isinstance(output, Value) or output.matrix is None:
        raise ProgramError(f"{name}.forward returns {type(output).__name__}: return logits of nn.Linear layers")
    matrix = output.matrix
    maker = next(op for op in graph.operations if op.output is (matrix.base or matrix))
    if type(maker) is not Dense or graph.users(maker.output):
        raise ProgramError(f"{name}.forward returns the output of {maker.name}: return logits of an nn.Linear layer")
    x = maker.inputs[0]
    if matrix.base is not None:  # take these rows of the layer's input instead of its logits
        x = graph.rows(x, matrix.first, matrix.tokens)
    most = tracer.sequence_length
    if x.tokens == 1:
        loss, task = INTENT, "classification"
    else:
        loss, task = SLOTS, LANGUAGE_MODEL if is_causal else "tagging"
        if x.tokens == graph.tokens:
            x = graph.rows(x, 0 if is_causal else 1, Register(-1, 0, 0, most - 1))
    graph.classify(maker, x, loss)
    return loss, task
