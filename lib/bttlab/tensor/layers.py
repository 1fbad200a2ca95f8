"""TT linear layer and TTM embedding as PyTorch modules: thin wrappers around the functions of this package."""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from bttlab.tensor.auto import auto_flow
from bttlab.tensor.flows import FLOWS, Flow
from bttlab.tensor.shapes import ShapeError, check_modes, tt_shapes, ttm_shapes
from bttlab.tensor.tt import core_std, tt_to_matrix
from bttlab.tensor.ttm import lookup, lookup_backward, row_digits, ttm_to_matrix

EMBEDDING_STD = 0.02  # of a table's entries, as in BERT


def xavier_std(in_features: int, out_features: int) -> float:
    """Return the standard deviation of a linear layer's weights at the start: sqrt(2 / (in + out))."""
    return math.sqrt(2 / (in_features + out_features))


class _Train(nn.Module):
    """A layer whose weights are a train of cores."""

    cores: nn.ParameterList
    core_map: nn.Module | None

    def used_cores(self) -> Sequence[Tensor]:
        """Return the cores as the layer uses them: the parameters, or what `core_map` makes of them."""
        # _parameters: iterating over a ParameterList takes half as long as both products with the tokens
        cores = list(self.cores._parameters.values())
        return cores if self.core_map is None else self.core_map(cores)


class TTLinear(_Train):
    """Linear layer y = x W^T + b whose W is a TT (arXiv 2501.06663).

    Parameters
    ----------
    in_features, out_features : int
    out_modes, in_modes : sequence of int
        Factorisations of `out_features` and `in_features`.
    rank : int or sequence of int
        Every internal rank, or all of them in order.
    flow : {"bidirectional", "right_to_left", "reconstruct", "auto"}
        Order of contraction, forward and backward; the results agree to rounding. "auto" takes at each call the order
        with the fewest multiply-accumulates for its tokens (`cheapest_order`). May be changed at any time.
    bias : bool

    Attributes
    ----------
    cores : nn.ParameterList
        Shapes (r_prev, n, r_next), output modes first. They start normal, such that the entries of W have Xavier's
        standard deviation sqrt(2 / (in + out)).
    bias : nn.Parameter, shape (out_features,), or None
        Starts at zero.
    core_map : nn.Module or None
        If set, maps the list of cores to those that the layer uses, of the same modes.

    Raises
    ------
    ShapeError
        If modes or ranks do not fit, the flow is unknown, or (on a call) x does not end in `in_features`.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        out_modes: Sequence[int],
        in_modes: Sequence[int],
        rank: int | Sequence[int],
        flow: str = "bidirectional",
        bias: bool = True,
    ):
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.out_modes = check_modes("out_modes", out_modes, out_features)
        self.in_modes = check_modes("in_modes", in_modes, in_features)
        if flow not in (*FLOWS, "auto"):
            raise ShapeError(f"flow is {flow!r}: choose one of {', '.join(FLOWS)}, auto")
        self.flow = flow
        self.cores = nn.ParameterList(torch.empty(shape) for shape in tt_shapes(out_modes, in_modes, rank))
        self._ranks = tuple(core.shape[2] for core in self.cores)[:-1]
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None
        self.core_map = None
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw new cores from `generator` (default: PyTorch's global one) and set the bias to zero."""
        _normal(self.cores, xavier_std(self.in_features, self.out_features), generator)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def set_cores(self, cores: Sequence[Tensor]) -> None:
        """Take other cores, of the same modes and any ranks that form a train, as new parameters."""
        self.cores = _new_cores(cores, tt_shapes(self.out_modes, self.in_modes, _inner_ranks(cores)))
        self._ranks = _inner_ranks(cores)

    def to_dense(self) -> Tensor:
        """Return W, shape (out, in)."""
        return tt_to_matrix(self.used_cores(), self.out_modes)

    def forward(self, x: Tensor) -> Tensor:
        """Map x of shape (..., in_features) to (..., out_features)."""
        if x.shape[-1] != self.in_features:
            raise ShapeError(
                f"x has shape {tuple(x.shape)}: its last dimension must be in_features = {self.in_features}"
            )
        return _TTLinearFunction.apply(self._flow_for(x), len(self.out_modes), x, self.bias, *self.used_cores())

    def _flow_for(self, x: Tensor) -> Flow:
        if self.flow != "auto":
            return FLOWS[self.flow]
        tokens = max(1, x.numel() // self.in_features)  # none at all cost nothing in any order
        return auto_flow(tokens, self.out_modes, self.in_modes, self._ranks)

    def extra_repr(self) -> str:
        """Show what defines the layer."""
        ranks = list(self._ranks)
        return f"{self.in_features}, {self.out_features}, {self.out_modes}, {self.in_modes}, {ranks}, {self.flow!r}"


class TTMEmbedding(_Train):
    """Embedding whose table is a TTM (arXiv 2501.06663).

    Parameters
    ----------
    num_embeddings, embedding_dim : int
        Rows and columns of the table.
    row_modes, column_modes : sequence of int
        Factorisations of `num_embeddings` and `embedding_dim`, of equal number.
    rank : int or sequence of int
        Every internal rank, or all of them in order.

    Attributes
    ----------
    cores : nn.ParameterList
        Shapes (r_prev, row mode, column mode, r_next). They start normal, such that the entries of the table have
        the standard deviation 0.02.
    core_map : nn.Module or None
        As for `TTLinear`.

    Raises
    ------
    ShapeError
        If modes or ranks do not fit, or (on a call) an id lies outside the table.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        row_modes: Sequence[int],
        column_modes: Sequence[int],
        rank: int | Sequence[int],
    ):
        super().__init__()
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.row_modes = check_modes("row_modes", row_modes, num_embeddings)
        self.column_modes = check_modes("column_modes", column_modes, embedding_dim)
        self.cores = nn.ParameterList(torch.empty(shape) for shape in ttm_shapes(row_modes, column_modes, rank))
        self.core_map = None
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw new cores from `generator` (default: PyTorch's global one)."""
        _normal(self.cores, EMBEDDING_STD, generator)

    def set_cores(self, cores: Sequence[Tensor]) -> None:
        """Take other cores, of the same modes and any ranks that form a train, as new parameters."""
        self.cores = _new_cores(cores, ttm_shapes(self.row_modes, self.column_modes, _inner_ranks(cores)))

    def to_dense(self) -> Tensor:
        """Return the table, shape (num_embeddings, embedding_dim)."""
        return ttm_to_matrix(self.used_cores())

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids of any shape (...) to (..., embedding_dim)."""
        try:
            return _TTMEmbeddingFunction.apply(ids, self.row_modes, *self.used_cores())
        except (IndexError, RuntimeError):  # either, from index_select
            low, high = int(ids.min()), int(ids.max())
            if low >= 0 and high < self.num_embeddings:
                raise
            raise ShapeError(
                f"ids reach from {low} to {high}: the table has rows 0 to {self.num_embeddings - 1}"
            ) from None

    def extra_repr(self) -> str:
        """Show what defines the layer."""
        ranks = [core.shape[3] for core in self.cores][:-1]
        return f"{self.num_embeddings}, {self.embedding_dim}, {self.row_modes}, {self.column_modes}, {ranks}"


class _TTLinearFunction(torch.autograd.Function):
    """Hands PyTorch's autograd the flow's own backward pass."""

    @staticmethod
    def forward(ctx, flow, outputs, x, bias, *cores):
        ctx.autocast = _autocast(x)
        rows = x if x.ndim == 2 else x.reshape(-1, x.shape[-1])
        y, saved = flow.forward(rows, cores[:outputs], cores[outputs:], bias)
        ctx.save_for_backward(rows, *cores, *saved)
        ctx.flow, ctx.outputs, ctx.count, ctx.shape, ctx.has_bias = flow, outputs, len(cores), x.shape, bias is not None
        return y if x.ndim == 2 else y.reshape(*x.shape[:-1], y.shape[1])

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        rows, *tensors = ctx.saved_tensors
        cores, saved = tensors[: ctx.count], tensors[ctx.count :]
        dy = dy if dy.ndim == 2 else dy.reshape(rows.shape[0], dy.shape[-1])
        with ctx.autocast:
            dx, grads = ctx.flow.backward(dy, rows, cores[: ctx.outputs], cores[ctx.outputs :], saved)
        return None, None, dx.view(ctx.shape), dy.sum(0) if ctx.has_bias else None, *grads


class _TTMEmbeddingFunction(torch.autograd.Function):
    """Hands PyTorch's autograd the lookup's own backward pass."""

    @staticmethod
    def forward(ctx, ids, row_modes, *cores):
        ctx.autocast = _autocast(ids)
        digits = row_digits(ids.reshape(-1), row_modes)
        rows, saved = lookup(digits, cores)
        ctx.save_for_backward(*digits, *cores, *saved)
        ctx.count = len(cores)
        return rows.view(*ids.shape, rows.shape[1])

    @staticmethod
    @once_differentiable
    def backward(ctx, drows):
        tensors = ctx.saved_tensors
        digits, cores, saved = tensors[: ctx.count], tensors[ctx.count : 2 * ctx.count], tensors[2 * ctx.count :]
        with ctx.autocast:
            grads = lookup_backward(drows.reshape(-1, drows.shape[-1]), digits, cores, saved)
        return None, None, *grads


def _autocast(x: Tensor) -> AbstractContextManager:
    """Return a context in which products are of the precision that torch.autocast gives them now."""
    kind = x.device.type
    if not torch.is_autocast_enabled(kind):
        return nullcontext()
    return torch.autocast(kind, torch.get_autocast_dtype(kind))


def _inner_ranks(cores: Sequence[Tensor]) -> tuple[int, ...]:
    return tuple(core.shape[-1] for core in cores)[:-1]


def _new_cores(cores: Sequence[Tensor], shapes: Sequence[tuple[int, ...]]) -> nn.ParameterList:
    given = [tuple(core.shape) for core in cores]
    if given != list(shapes):
        raise ShapeError(f"cores have the shapes {given}: the layer's modes and these ranks give {list(shapes)}")
    return nn.ParameterList(nn.Parameter(core.detach().clone()) for core in cores)


def _normal(cores: nn.ParameterList, entry_std: float, generator: torch.Generator | None) -> None:
    std = core_std([core.shape for core in cores], entry_std)
    with torch.no_grad():
        for core in cores:
            core.normal_(0.0, std, generator=generator)
