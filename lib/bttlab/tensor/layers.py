"""TT linear layer and TTM embedding as PyTorch modules: thin wrappers around the functions of this package."""

import math
from collections.abc import Sequence, Sized
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.fx import Proxy

from bttlab.tensor.auto import auto_flow
from bttlab.tensor.flows import FLOWS, Flow
from bttlab.tensor.read_only import read_only, refusal
from bttlab.tensor.shapes import (
    ShapeError,
    check_modes,
    check_row_modes,
    choose_modes,
    table_modes,
    tt_shapes,
    ttm_shapes,
)
from bttlab.tensor.tt import core_std, matrix_to_tt, tt_to_matrix
from bttlab.tensor.ttm import lookup, lookup_backward, matrix_to_ttm, row_digits, ttm_to_matrix

EMBEDDING_STD = 0.02  # of a table's initial entries, as in BERT
ENDS = 3  # number of cores at each end of a layer with default modes


def xavier_std(in_features: int, out_features: int) -> float:
    """Return the standard deviation of a linear layer's initial weights: sqrt(2 / (in + out)).

    Parameters
    ----------
    in_features, out_features : int
        Of the layer.

    Returns
    -------
    float
        Of a normal distribution (Glorot and Bengio, AISTATS 2010, equation 12).
    """
    return math.sqrt(2 / (in_features + out_features))


class _Train(nn.Module):
    """A layer whose weight is a tensor train."""

    cores: nn.ParameterList
    core_map: nn.Module | None
    _names: tuple[str, ...]  # of the cores in `cores`, in order

    def used_cores(self) -> Sequence[Tensor]:
        """Return the cores that the layer uses: the parameters, or the result of `core_map` for them."""
        # _parameters, because iterating over a ParameterList takes half as long as both products with the tokens
        parameters: Any = self.cores._parameters
        cores = list(parameters.values()) if tuple(parameters) == self._names else self._cores_by_name()
        return cores if self.core_map is None else self.core_map(cores)

    def _cores_by_name(self) -> list[Tensor]:
        """Return the cores in order, with their parametrizations applied; refuse what PyTorch would not apply.

        PyTorch puts a parameter last when it removes its parametrization or pruning.
        """
        hooked = next((name for name in self.cores._parameters if name not in self._names), None)
        if hooked is not None:
            core = hooked.split("_")[0]
            if hasattr(self.cores, f"{core}_mask"):
                raise ShapeError(f"core {core} is pruned, which has no effect here: call prune.remove first")
            raise ShapeError(
                f"core {core} has the parameter {hooked}, which has no effect here: use torch.nn.utils.parametrizations"
            )
        return [getattr(self.cores, name) for name in self._names]

    def _stored_cores(self) -> list[nn.Parameter]:
        """Return the parameters themselves; refuse computed ones, since writing to these would be lost."""
        for name in self._names:
            if name not in self.cores._parameters:
                raise ShapeError(
                    f"core {name} is parametrized or pruned, so writing to it would be lost: call "
                    "parametrize.remove_parametrizations or prune.remove first"
                )
        return [self.cores._parameters[name] for name in self._names]  # pyright: ignore[reportReturnType]

    def to_dense(self) -> Tensor:
        raise NotImplementedError

    @property
    def weight(self) -> Tensor:
        """The matrix, rebuilt from the cores, to be read only: writing to it or assigning it raises ShapeError."""
        return read_only(self.to_dense(), type(self).__name__)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "weight":  # nn.Module would register it beside the cores
            raise refusal(type(self).__name__)
        super().__setattr__(name, value)

    def _shapes_of(self, cores: Sequence[Tensor]) -> list[tuple[int, ...]]:
        """Return the shapes of a train with the layer's modes and the ranks of `cores`."""
        raise NotImplementedError

    def __prepare_scriptable__(self) -> NoReturn:
        name = type(self).__name__
        raise ShapeError(f"torch.jit.script does not take {name}: use torch.jit.trace, torch.export or torch.compile")

    def set_cores(self, cores: Sequence[Tensor]) -> None:
        """Copy other cores with the same modes and any ranks that form a train into the parameters.

        The parameters stay the same objects, so an optimizer made before trains them on. Where a core changes its
        shape, its gradient is dropped; an optimizer that has state of the old shape raises an error in its next step.
        """
        actual, wanted = [tuple(core.shape) for core in cores], self._shapes_of(cores)
        if actual != wanted:
            raise ShapeError(f"cores have the shapes {actual}: the layer's modes and these ranks give {wanted}")
        for parameter, core in zip(self._stored_cores(), cores, strict=True):
            if parameter.shape != core.shape:
                parameter.grad = None
                # An earlier graph may keep the node that accumulates gradients of the old shape. PyTorch 2.13 replaces
                # the node only if the dtype changes.
                other = torch.float32 if parameter.dtype == torch.float64 else torch.float64
                parameter.data = torch.empty(0, dtype=other, device=parameter.device)
            parameter.data = core.detach().clone()

    def _load_from_state_dict(self, state_dict, prefix, *others) -> None:
        """Load a state with other ranks: the parameters take its shapes first."""
        names = [f"{prefix}cores.{k}" for k in range(len(self.cores))]
        loaded = [state_dict[name] for name in names if name in state_dict]
        if len(loaded) == len(names) and [tuple(core.shape) for core in loaded] == self._shapes_of(loaded):
            if any(old.shape != new.shape for old, new in zip(self.cores, loaded, strict=True)):
                self.set_cores([new.to(old) for old, new in zip(self.cores, loaded, strict=True)])
        super()._load_from_state_dict(state_dict, prefix, *others)


class TTLinear(_Train):
    """Linear layer y = x W^T + b whose W is a TT (arXiv 2501.06663).

    Parameters
    ----------
    in_features, out_features : int
        Sizes of the last dimension of x and y.
    out_modes, in_modes : sequence of int
        Factorisations of `out_features` and `in_features`.
    rank : int or sequence of int
        Every internal rank, or all of them in order.
    flow : {"bidirectional", "right_to_left", "reconstruct", "auto"}
        Order of contraction, forward and backward; the results are equal except for rounding. "auto" uses in each call
        the order of the least time for its tokens (`auto_flow`); under torch.compile it is "bidirectional". It may be
        changed at any time.
    bias : bool
        Whether to add b, of shape (out_features,), initially zero.
    device, dtype : optional
        Of the parameters, as for `torch.nn.Linear`.

    Attributes
    ----------
    cores : nn.ParameterList
        Of shapes (r_prev, n, r_next), output modes first. They are initially normal, so that the entries of W have
        Xavier's standard deviation sqrt(2 / (in + out)).
    core_map : callable or None
        If set, it maps the list of cores to the cores that the layer uses, with the same modes.

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
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.out_modes = check_modes("out_modes", out_modes, out_features)
        self.in_modes = check_modes("in_modes", in_modes, in_features)
        self.flow = _checked_flow(flow)
        options = {"device": device, "dtype": dtype}
        self.cores = nn.ParameterList(torch.empty(shape, **options) for shape in tt_shapes(out_modes, in_modes, rank))
        self._names, self._ranks = _names(self.cores), _inner_ranks(list(self.cores))
        self.bias = nn.Parameter(torch.empty(out_features, **options)) if bias else None
        self.core_map = None
        self.reset_parameters()

    @classmethod
    def from_linear(
        cls,
        layer: nn.Linear,
        rank: int | Sequence[int] | None = None,
        error: float | None = None,
        modes: tuple[Sequence[int], Sequence[int]] | None = None,
        flow: str = "bidirectional",
    ) -> "TTLinear":
        """Return a layer with the TT-SVD of a dense layer's weight as cores, and the same device, dtype and bias.

        `rank` and `error` are as for `matrix_to_tt`. The modes, (out_modes, in_modes), are by default three factors of
        each size, as equal as its prime factors allow. Raises ShapeError if modes, rank or error do not fit.
        """
        weight, trained = weight_of(layer)
        outs, ins = modes or (choose_modes(layer.out_features, ENDS), choose_modes(layer.in_features, ENDS)[::-1])
        cores = matrix_to_tt(weight, outs, ins, rank, error)
        bias = layer.bias is not None
        made = cls(
            layer.in_features,
            layer.out_features,
            outs,
            ins,
            _inner_ranks(cores),
            flow,
            bias,
            weight.device,
            weight.dtype,
        )
        made.set_cores(cores)
        made.cores.requires_grad_(trained)
        if bias:
            made.bias = nn.Parameter(layer.bias.detach().clone(), layer.bias.requires_grad)
        return made.train(layer.training)

    @torch.no_grad()
    def to_linear(self) -> nn.Linear:
        """Return a dense layer with the same weight and bias."""
        core = self.cores[0]
        layer = nn.Linear(
            self.in_features, self.out_features, self.bias is not None, device=core.device, dtype=core.dtype
        )
        with _full_precision(core):
            layer.weight.copy_(self.to_dense())
        layer.weight.requires_grad_(any(core.requires_grad for core in self.cores.parameters()))
        if self.bias is not None:
            layer.bias.copy_(self.bias)
            layer.bias.requires_grad_(self.bias.requires_grad)
        return layer.train(self.training)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw new cores from `generator` (default: PyTorch's global one) and set the bias to zero."""
        _normal(self._stored_cores(), xavier_std(self.in_features, self.out_features), generator)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def _shapes_of(self, cores: Sequence[Tensor]) -> list[tuple[int, ...]]:
        return tt_shapes(self.out_modes, self.in_modes, _inner_ranks(cores))

    def set_cores(self, cores: Sequence[Tensor]) -> None:
        super().set_cores(cores)
        self._ranks = _inner_ranks(cores)

    def to_dense(self) -> Tensor:
        """Return W, shape (out, in)."""
        return tt_to_matrix(self.used_cores(), self.out_modes)

    def forward(self, input: Tensor) -> Tensor:
        """Map input of shape (..., in_features) to (..., out_features)."""
        if isinstance(input, Proxy):
            return _symbolic(self, input)
        if input.shape[-1:] != (self.in_features,):
            raise ShapeError(
                f"input has shape {tuple(input.shape)}: its last dimension must be in_features = {self.in_features}"
            )
        flow, cores, outputs = self._flow_for(input), self.used_cores(), len(self.out_modes)
        rows = input if input.ndim == 2 else input.reshape(-1, input.shape[-1])
        if not _plain():
            y = _TTLinearFunction.apply(flow, outputs, rows, self.bias, *cores)
        else:
            y, _ = flow.forward(rows, cores[:outputs], cores[outputs:], self.bias)
        return y if input.ndim == 2 else y.reshape(*input.shape[:-1], y.shape[1])

    def _flow_for(self, x: Tensor) -> Flow:
        if self.flow != "auto":
            return FLOWS[_checked_flow(self.flow)]
        if torch.compiler.is_compiling():  # torch.compile cannot trace the search for an order
            return FLOWS["bidirectional"]
        tokens = max(1, x.numel() // self.in_features)  # without tokens the order does not matter
        return auto_flow(tokens, self.out_modes, self.in_modes, self._ranks)

    def extra_repr(self) -> str:
        ranks = list(self._ranks)
        return f"{self.in_features}, {self.out_features}, {self.out_modes}, {self.in_modes}, {ranks}, {self.flow!r}"


class TTMEmbedding(_Train):
    """Embedding whose table is a TTM (arXiv 2501.06663).

    Parameters
    ----------
    num_embeddings, embedding_dim : int
        Numbers of rows and columns of the table.
    row_modes, column_modes : sequence of int
        Factorisations of the two, with the same number of factors. The product of the row modes may be larger
        (`check_row_modes`): the rows beyond are never read.
    rank : int or sequence of int
        As for `TTLinear`.
    device, dtype : optional
        Of the cores, as for `torch.nn.Embedding`.

    Attributes
    ----------
    cores : nn.ParameterList
        Of shapes (r_prev, row mode, column mode, r_next). They are initially normal, so that the entries of the table
        have the standard deviation 0.02.
    core_map : callable or None
        As for `TTLinear`.

    Raises
    ------
    ShapeError
        If modes or ranks do not fit, or (on a call) an id is outside the table.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        row_modes: Sequence[int],
        column_modes: Sequence[int],
        rank: int | Sequence[int],
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.row_modes = check_row_modes(row_modes, num_embeddings)
        self.column_modes = check_modes("column_modes", column_modes, embedding_dim)
        shapes = ttm_shapes(row_modes, column_modes, rank)
        self.cores = nn.ParameterList(torch.empty(shape, device=device, dtype=dtype) for shape in shapes)
        self._names, self._is_padded = _names(shapes), math.prod(self.row_modes) > num_embeddings
        self.core_map = None
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw new cores from `generator` (default: PyTorch's global one)."""
        _normal(self._stored_cores(), EMBEDDING_STD, generator)

    @classmethod
    def from_embedding(
        cls,
        layer: nn.Embedding,
        rank: int | Sequence[int] | None = None,
        error: float | None = None,
        modes: tuple[Sequence[int], Sequence[int]] | None = None,
        ignore_padding: bool = False,
    ) -> "TTMEmbedding":
        """Return a layer with the TT-SVD of a dense table as cores; parameters and errors as `TTLinear.from_linear`.

        With `ignore_padding` a `padding_idx` has no effect: its row changes with the cores, so nothing may depend on
        it, as in a model that masks its padding.

        Raises ShapeError, too, if the dense layer has an option that the TTM would lose: `option_to_lose`.
        """
        if option := option_to_lose(layer, ignore_padding):
            way_out = ", or give ignore_padding=True if the model masks its padding" if "padding" in option else ""
            raise ShapeError(f"the embedding has {option}, which a TTM has not: keep it dense{way_out}")
        table, trained = weight_of(layer)
        rows, columns = modes or (table_modes(layer.num_embeddings, ENDS), choose_modes(layer.embedding_dim, ENDS))
        count = max(len(rows), len(columns))
        rows, columns = ((*sizes, *[1] * (count - len(sizes))) for sizes in (rows, columns))
        cores = matrix_to_ttm(table, rows, columns, rank, error)
        made = cls(
            layer.num_embeddings, layer.embedding_dim, rows, columns, _inner_ranks(cores), table.device, table.dtype
        )
        made.set_cores(cores)
        made.cores.requires_grad_(trained)
        return made.train(layer.training)

    @torch.no_grad()
    def to_embedding(self) -> nn.Embedding:
        """Return a dense table with the same rows."""
        core = self.cores[0]
        with _full_precision(core):
            table = self.to_dense()
        layer = nn.Embedding(
            self.num_embeddings, self.embedding_dim, device=core.device, dtype=core.dtype, _weight=table
        )
        layer.weight.requires_grad_(any(core.requires_grad for core in self.cores.parameters()))
        return layer.train(self.training)

    def _shapes_of(self, cores: Sequence[Tensor]) -> list[tuple[int, ...]]:
        return ttm_shapes(self.row_modes, self.column_modes, _inner_ranks(cores))

    def to_dense(self) -> Tensor:
        """Return the table, shape (num_embeddings, embedding_dim)."""
        return ttm_to_matrix(self.used_cores())[: self.num_embeddings]

    def forward(self, input: Tensor) -> Tensor:
        """Map ids of any shape (...) to (..., embedding_dim)."""
        if isinstance(input, Proxy):
            return _symbolic(self, input)
        try:
            if self._is_padded and not _plain() and input.numel() and not input.is_meta:
                self._check_rows(input)
            if _plain():
                ids = input.reshape(-1)
                if self._is_padded:  # an id of a row that only pads the table gets a first digit outside its mode
                    ids = ids.where(ids < self.num_embeddings, math.prod(self.row_modes))
                rows, _ = lookup(row_digits(ids, self.row_modes), self.used_cores())
            else:
                rows = _TTMEmbeddingFunction.apply(input.reshape(-1), self.row_modes, *self.used_cores())
            return rows.reshape(*input.shape, rows.shape[1])
        except (IndexError, RuntimeError):  # index_select raises one or the other
            self._check_rows(input)
            raise

    def _check_rows(self, ids: Tensor) -> None:
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= self.num_embeddings:
            text = f"ids are from {low} to {high}: the table has rows 0 to {self.num_embeddings - 1}"
            raise ShapeError(text) from None

    def extra_repr(self) -> str:
        ranks = [core.shape[3] for core in self.cores][:-1]
        return f"{self.num_embeddings}, {self.embedding_dim}, {self.row_modes}, {self.column_modes}, {ranks}"


@torch.enable_grad()
def weight_of(layer: Any) -> tuple[Tensor, bool]:
    """Return the weight of a dense layer, and whether it is trained; one with a parametrization is computed here."""
    return layer.weight, layer.weight.requires_grad


def option_to_lose(layer: nn.Embedding, ignore_padding: bool = False) -> str:
    """Return the option of a dense embedding that changes training and that a TTM does not have; "" if none."""
    if layer.padding_idx is not None and not ignore_padding:
        return f"padding_idx {layer.padding_idx}"
    if layer.max_norm is not None:
        return f"max_norm {layer.max_norm}"
    return "scale_grad_by_freq" if layer.scale_grad_by_freq else ""


class _TTLinearFunction(torch.autograd.Function):
    """Connects the hand-derived backward pass of a flow with PyTorch's autograd."""

    @staticmethod
    def forward(ctx, flow, outputs, x, bias, *cores):
        ctx.autocast = _autocast(x)
        y, saved = flow.forward(x, cores[:outputs], cores[outputs:], bias)
        ctx.save_for_backward(x, *cores, *saved)
        ctx.flow, ctx.outputs, ctx.count = flow, outputs, len(cores)
        return y if y._base is None else y.clone()  # a view could not be changed in place afterwards

    @staticmethod
    def backward(ctx, dy):
        rows, *tensors = (tensor.conj() for tensor in ctx.saved_tensors)  # real tensors are their own conjugates
        cores, saved = tensors[: ctx.count], tensors[ctx.count :]
        frozen = not any(ctx.needs_input_grad[4:])
        with ctx.autocast:
            if torch.is_grad_enabled():  # second derivative: the saved tensors depend on the inputs, so recompute them
                _, saved = ctx.flow.forward(rows, cores[: ctx.outputs], cores[ctx.outputs :])
            dx, grads = ctx.flow.backward(dy, rows, cores[: ctx.outputs], cores[ctx.outputs :], saved, frozen)
        dbias = dy.sum(0) if ctx.needs_input_grad[3] else None
        return None, None, dx, dbias, *(grads or (None,) * ctx.count)


class _TTMEmbeddingFunction(torch.autograd.Function):
    """Connects the hand-derived backward pass of the lookup with PyTorch's autograd."""

    @staticmethod
    def forward(ctx, ids, row_modes, *cores):
        ctx.autocast = _autocast(ids)
        digits = row_digits(ids, row_modes)
        rows, saved = lookup(digits, cores)
        ctx.save_for_backward(*digits, *cores, *saved)
        ctx.count = len(cores)
        return rows if rows._base is None else rows.clone()

    @staticmethod
    def backward(ctx, drows):
        digits, tensors = ctx.saved_tensors[: ctx.count], [t.conj() for t in ctx.saved_tensors[ctx.count :]]
        cores, saved = tensors[: ctx.count], tuple(tensors[ctx.count :])
        with ctx.autocast:
            if torch.is_grad_enabled():
                _, saved = lookup(digits, cores)
            grads = lookup_backward(drows, digits, cores, saved)
        return None, None, *grads


def _plain() -> bool:
    """Return True where PyTorch must see the products: in forward mode, torch.func, torch.compile, torch.jit.trace."""
    return (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()  # pyright: ignore[reportPrivateImportUsage]
        or torch.autograd.forward_ad._current_level >= 0
        or torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
    )


def _symbolic(layer: nn.Module, x: Proxy) -> Any:
    """Return the call of a layer while torch.fx traces the module around it: as a layer of torch.nn, it stays whole."""
    path = x.tracer.path_of_module(layer)  # pyright: ignore[reportAttributeAccessIssue]  # a Tracer has it
    if not path:
        raise TypeError(f"torch.fx traces {type(layer).__name__} as one call: trace a module around it, or export it")
    return x.tracer.create_proxy("call_module", path, (x,), {})


def _autocast(x: Tensor) -> AbstractContextManager:
    """Return a context with the present settings of torch.autocast for the device of x."""
    kind = x.device.type
    if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
        return nullcontext()
    return torch.autocast(kind, torch.get_autocast_dtype(kind))


def _full_precision(x: Tensor) -> AbstractContextManager:
    """Return a context without torch.autocast for the device of x."""
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()


def _checked_flow(flow: str) -> str:
    if flow not in FLOWS and flow != "auto":
        raise ShapeError(f"flow is {flow!r}: choose one of {', '.join(FLOWS)}, auto")
    return flow


def _names(cores: Sized) -> tuple[str, ...]:
    return tuple(map(str, range(len(cores))))


def _inner_ranks(cores: Sequence[Tensor]) -> tuple[int, ...]:
    return tuple(core.shape[-1] for core in cores)[:-1]


def _normal(cores: Sequence[Tensor], entry_std: float, generator: torch.Generator | None) -> None:
    std = core_std([core.shape for core in cores], entry_std)
    with torch.no_grad():
        for core in cores:
            core.normal_(0.0, std, generator=generator)
