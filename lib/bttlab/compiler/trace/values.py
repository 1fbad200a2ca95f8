"""What the tensors of a module hold while it is traced: elements of a matrix of the graph, of a parameter, scores.

Each value has an index tensor of the tensor's shape: the number of each element in its matrix (token * features +
feature) or parameter. Operations that only move elements are applied to the index tensor as they are; which rows,
columns or heads a tensor holds is then read from its indices, whatever moves led there.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from bttlab.compiler.operation import Matrix, SourceLine

HIDDEN = -1e9  # a mask of this or less hides a key; others are added as they are


class Refusal(Exception):
    """An operation that the card does not have, and what to use instead."""

    def __init__(self, what: str, near: str = ""):
        super().__init__(what)
        self.what, self.near = what, near
        self.place: tuple[str, SourceLine | None] | None = None  # where, if not where it is caught


def refuse(what: str, near: str) -> NoReturn:
    """Raise Refusal."""
    raise Refusal(what, near)


@dataclass(eq=False)
class Ids:
    """Token ids of the sample; with a divisor, their remainders (words), or the quotients (types of the tokens)."""

    index: Tensor
    divisor: int = 0
    is_type: bool = False


@dataclass(eq=False)
class Formula:
    """A function of elements, or of all features of a token: recorded as an operation when something else reads it.

    `function` is the composition of all steps since the elements, and `name` is of the last step, with its place.
    """

    function: Callable[[Tensor], Tensor]
    last: Callable[[], "Elements"]  # records the last step alone, for a composition that is not a known function
    name: str
    norm: Callable[["Elements"], "Elements"] | None = None  # records a function of all features, if it is a norm
    recorded: "Elements | None" = None


@dataclass(eq=False)
class Scalar:
    """An element of a parameter as the factor of elements: recorded as a product when something else reads them."""

    times: Callable[["Elements"], "Elements"]  # records the product
    weights: "Weights"
    recorded: "Elements | None" = None


@dataclass(eq=False)
class Elements:
    """Elements of a matrix: as they are, each times a constant, or a formula of them; or such times a scalar.

    `factor` has the constants: it is of the index's shape, in double precision.
    """

    matrix: Matrix
    index: Tensor
    factor: Tensor | None = None
    formula: Formula | None = None
    line: SourceLine | None = None  # of the module, that computes a product or a formula
    scalar: Scalar | None = None

    @property
    def is_plain(self) -> bool:
        return self.factor is None and self.formula is None and self.scalar is None


@dataclass(eq=False)
class Weights:
    """`factor` w + `offset`, of elements w of a parameter, or of a sum of products of matrices, as of a merged LoRA.

    With a `function`, a key of `functions.ACTIVATIONS`, it is of that function of one element w.

    The sum has the `names` of all matrices, and its own elements' numbers. A layer with it is recorded as the sum of
    their layers: `layer` takes x and whether the matrix W is (out, in), and returns x W^T, else x W.
    """

    names: tuple[str, ...]
    index: Tensor
    factor: float = 1.0
    offset: float = 0.0
    layer: Callable[[Tensor, bool], Tensor] | None = None
    function: str = ""

    @property
    def name(self) -> str:
        """The parameter; for messages, two of several."""
        return ", ".join(self.names[:2])

    @property
    def is_plain(self) -> bool:
        return self.layer is None and (self.factor, self.offset, self.function) == (1.0, 0.0, "")

    @property
    def element(self) -> int | None:
        """The number of the element of a parameter that all elements of the tensor are; None for several."""
        first = int(self.index.reshape(-1)[0]) if self.index.numel() and self.layer is None else None
        return first if first is not None and bool((self.index == first).all()) else None


@dataclass(eq=False)
class AttentionScores:
    """Attention scores scale q k^T + mask + biases, or their softmax.

    The index has numbers of (heads, tokens, tokens).
    """

    q: Matrix
    k: Matrix
    heads: int
    scale: float
    mask: Tensor  # (heads, tokens, tokens), added to the scaled scores; -inf hides a key
    index: Tensor
    is_softmax: bool = False
    biases: tuple[Weights, ...] = ()  # factors times elements of parameters, (heads, tokens, tokens) each

    def scaled(self, factor: float) -> "AttentionScores":
        """Return the scores times a factor."""
        if factor <= 0 and bool((self.mask <= HIDDEN).any()):
            raise Refusal(f"a factor of {factor:g} for scores with a mask that hides keys", "the mask after the factor")
        biases = tuple(replace(bias, factor=bias.factor * factor) for bias in self.biases)
        return replace(self, scale=self.scale * factor, mask=self.mask * factor, biases=biases)

    def masked(self, mask: Tensor | None) -> "AttentionScores":
        """Return the scores plus a constant mask; None is something that is not constant."""
        if mask is None or self.is_softmax:
            raise Refusal("add to the scores of something that is not constant", "a constant mask")
        try:
            return replace(self, mask=self.mask + self.spread(mask))
        except RuntimeError:
            raise Refusal("add of a mask of another shape", "a mask (tokens, tokens)") from None

    def biased(self, w: Weights, factor: float) -> "AttentionScores":
        """Return the scores plus a factor times elements of a parameter, of a shape that broadcasts to theirs."""
        if self.is_softmax:
            raise Refusal(f"add of {w.name} after the softmax", "a bias of the scores before it")
        bias = replace(w, index=self.spread(w.index), factor=factor * w.factor, offset=0.0)
        return replace(self, mask=self.mask + factor * w.offset, biases=(*self.biases, bias))

    def spread(self, values: Tensor) -> Tensor:
        """Return values of the tensor's shape, or that broadcast to it, in the order of `mask`."""
        flat = torch.empty(self.mask.numel(), dtype=values.dtype)
        flat[self.index.reshape(-1)] = values.detach().cpu().expand(self.index.shape).reshape(-1)
        return flat.view(self.mask.shape)


@dataclass(eq=False)
class Refused:
    """The result of an operation that the card does not have: an error if an output depends on it."""

    message: str
    is_of_ids: bool = False  # it is computed from token ids


def moved(value: Any, move: Callable[[Tensor], Any], name: str) -> list[Any]:
    """Return what the results of a move hold: it is applied to the indices, and to what belongs to each element.

    Raise Refusal for a sum of products of which it takes a part.
    """
    indices = list(tensors_in(move(value.index)))
    if isinstance(value, Elements) and value.factor is not None:
        factors = tensors_in(move(value.factor))
        return [replace(value, index=i, factor=factor) for i, factor in zip(indices, factors, strict=True)]
    if isinstance(value, Weights) and value.layer is not None and not torch.equal(indices[0], value.index):
        if not torch.equal(indices[0], value.index.T):
            raise Refusal(f"{name} of a computed parameter, from {value.name},", "the whole")
        transposed = lambda x, is_out_in: value.layer(x, not is_out_in)  # noqa: E731
        return [replace(value, index=value.index.view(indices[0].shape), layer=transposed)]
    return [replace(value, index=index) for index in indices]


class Rows(NamedTuple):
    """Rows `first` to `first + count` and columns of a matrix, row by row."""

    first: int
    count: int
    column: int
    columns: int


def rows_in(index: Tensor, features: int) -> Rows | None:
    """Return which rows and columns of a matrix a tensor holds, in order; None if it holds other elements."""
    flat = index.reshape(-1, index.shape[-1]) if index.ndim else index.reshape(1, 1)
    if not flat.numel():
        return None
    first, column = divmod(int(flat[0, 0]), features)
    count, columns = flat.shape
    expected = (first + torch.arange(count))[:, None] * features + column + torch.arange(columns)
    if column + columns > features or not torch.equal(flat, expected):
        return None
    return Rows(first, count, column, columns)


def heads_in(index: Tensor, features: int) -> tuple[int, int, int] | None:
    """Return heads, tokens and first column of a tensor (..., heads, tokens, features of a head), else None.

    A tensor (tokens, features) has one head.
    """
    sizes = [size for size in index.shape[:-2] if size != 1]
    if index.ndim < 2 or len(sizes) > 1:
        return None
    heads, (tokens, size) = sizes[0] if sizes else 1, index.shape[-2:]
    column = int(index.reshape(-1)[0])
    numbers = torch.arange(tokens)[:, None] * features + column + torch.arange(size)
    expected = torch.arange(heads)[:, None, None] * size + numbers
    if column + heads * size > features or not torch.equal(index.reshape(heads, tokens, size), expected):
        return None
    return heads, tokens, column


def columns_in(index: Tensor, features: int, tokens: int) -> tuple[Tensor, Tensor] | None:
    """Return which columns a tensor holds, the same of each token, and its index in a matrix of these columns.

    Columns are in the order in which the tensor holds those of a token. None if tokens have different ones.
    """
    flat = index.reshape(-1)
    order = (flat // features).argsort(stable=True)
    if not flat.numel() or flat.numel() % tokens:
        return None
    rows, columns = ((numbers[order]).view(tokens, -1) for numbers in (flat // features, flat % features))
    if not bool((rows == torch.arange(tokens)[:, None]).all()) or not bool((columns == columns[0]).all()):
        return None
    its_index = torch.empty_like(flat)
    its_index[order] = torch.arange(flat.numel())
    return columns[0], its_index.view(index.shape)


def columns_like(index: Tensor, features: int, wanted: Tensor, its_features: int) -> Tensor | None:
    """Return the columns that bring a tensor's elements to where another matrix has those of a tensor of its shape."""
    columns = torch.full((its_features,), -1)
    columns[(wanted % its_features).reshape(-1)] = (index % features).reshape(-1)
    is_found = bool((columns >= 0).all()) and torch.equal(columns[wanted % its_features], index % features)
    return columns if is_found and torch.equal(index // features, wanted // its_features) else None


def in_order(index: Tensor) -> bool:
    """Return True if a tensor holds the first elements of a matrix, row by row."""
    return torch.equal(index.reshape(-1), torch.arange(index.numel()))


def covers(index: Tensor, size: int) -> bool:
    """Return True if a tensor holds each element of a matrix once."""
    return index.numel() == size and torch.equal(index.reshape(-1).sort().values, torch.arange(size))


def tensors_in(x: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested sequences."""
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, tuple | list):
        for item in x:
            yield from tensors_in(item)


def as_scalar(x: Any) -> Any:
    """Return a constant tensor of equal elements as one of no axes: the first operand of a method must be a tensor."""
    if isinstance(x, Tensor) and x.numel() and bool((x == x.reshape(-1)[0]).all()):
        return x.reshape(-1)[0]
    return x


def kind_of(value: Any) -> str:
    """Return what a value of a tensor is, for messages."""
    if isinstance(value, Weights):
        return "a computed parameter" if value.layer is not None or value.function else "a parameter"
    names = {Ids: "token ids", AttentionScores: "attention scores", type(None): "a constant"}
    return names.get(type(value), "an activation")
