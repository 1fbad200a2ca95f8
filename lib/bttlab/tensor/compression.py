"""Replace the dense layers of a model by tensor layers, and report the effect on each."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.utils import parametrize

from bttlab.tensor.attention import TTAttention
from bttlab.tensor.layers import TTLinear, TTMEmbedding, option_to_lose
from bttlab.tensor.shapes import ShapeError

MOST_ERROR = 0.5  # of a weight, in the Frobenius norm: above it the report says that the layer begins anew

CARD_RANK = 64  # the largest rank of a layer that the card trains (`bttlab.compiler.builder.MAX_RANK`)


class Ranks(NamedTuple):
    """How the ranks of each layer are chosen: the arguments of `compress`."""

    rank: int | None
    error: float | None
    most: int | None


@dataclass(frozen=True)
class CompressedLayer:
    """What `compress` did with one layer.

    Attributes
    ----------
    name : str
        Of the layer in its model.
    before, after : int
        Number of parameters.
    ranks : tuple of int
        Internal ranks; none if the layer was not replaced.
    error : float
        Relative error of the weight, in the Frobenius norm.
    note : str
        Why a layer was not replaced, or empty.
    """

    name: str
    before: int
    after: int
    ranks: tuple[int, ...] = ()
    error: float = 0.0
    note: str = ""


@dataclass(frozen=True)
class Compression:
    """Report of `compress`; `print` shows a table.

    Attributes
    ----------
    layers : list of CompressedLayer
        One for each linear layer and embedding, in the model's order.
    before, after : int
        Number of parameters of the whole model.
    """

    layers: list[CompressedLayer]
    before: int
    after: int

    def __str__(self) -> str:
        width = max([5, *(len(layer.name) for layer in self.layers)])
        lines = [f"{'layer':{width}} {'before':>12} {'after':>12}  {'error':>6}  ranks"]
        for layer in self.layers:
            what = layer.note or " ".join(map(str, layer.ranks))
            lines.append(f"{layer.name:{width}} {layer.before:12,} {layer.after:12,}  {layer.error:6.1%}  {what}")
        lines.append(f"{'model':{width}} {self.before:12,} {self.after:12,}")
        replaced = [layer for layer in self.layers if layer.ranks]
        if lost := sum(layer.error > MOST_ERROR for layer in replaced):
            lines.append(
                f"{lost} of {len(replaced)} replaced layers have an error above {MOST_ERROR:.0%}: little of what they "
                "had learned is left. Train the model again, or give a larger rank or a smaller error"
            )
        if high := [layer for layer in replaced if max(layer.ranks) > CARD_RANK]:
            lines.append(
                f"{len(high)} of {len(replaced)} replaced layers have ranks above {CARD_RANK}, the largest that the "
                f"card trains: give max_rank={CARD_RANK} for it"
            )
        return "\n".join(lines)


def compress(
    model: nn.Module,
    rank: int | None = None,
    error: float | None = None,
    *,
    max_rank: int | None = None,
    embeddings: bool = True,
    skip: Collection[str] = (),
    flow: str = "bidirectional",
    ignore_padding: bool = False,
) -> Compression:
    """Replace linear layers, embeddings and attentions of a model in place, by TT and TTM layers and `TTAttention`.

    Give either `rank` or `error`.

    Parameters
    ----------
    model : nn.Module
        The model, which has such layers and is none itself.
    rank : int, optional
        The largest internal rank of each layer.
    error : float, optional
        The largest relative error of each weight in the Frobenius norm.
    max_rank : int, optional
        With `error`, the largest rank, such as the 64 that the card trains. A weight that needs larger ones has a
        larger error, which the report shows.
    embeddings : bool
        Whether to replace embeddings, too.
    skip : collection of str
        Names of layers that stay dense, such as "classifier".
    flow : str
        As for `TTLinear`.
    ignore_padding : bool
        Replace embeddings with a `padding_idx`, too: the row of the padding then changes with the others, which a
        model that masks its padding never sees.

    Returns
    -------
    Compression
        The report, with a line for each layer.

    Raises
    ------
    ShapeError
        If `rank`, `error` or `max_rank` is not allowed, a name in `skip` is not a layer, or `model` is itself a layer.
    """
    if isinstance(skip, str):
        raise ShapeError(f"skip is {skip!r}: give a list of names")
    if max_rank is not None and (error is None or isinstance(max_rank, bool) or not max_rank >= 1):
        raise ShapeError(f"max_rank is {max_rank} and error is {error}: give a rank of at least 1, and an error")
    names = dict(model.named_modules())
    if unknown := set(skip) - set(names):
        raise ShapeError(f"skip has {', '.join(sorted(unknown))}: the model has no such layer")
    if _is_dense(model):
        raise ShapeError("the model is a single layer: use TTLinear.from_linear or TTMEmbedding.from_embedding")
    before, layers, made = _count(model), [], {}
    users = Counter(parameter for module in names.values() for parameter in module.parameters(recurse=False))
    for name, layer in names.items():
        if type(layer).__name__ == "Conv1D" and hasattr(layer, "nf"):
            size = _count(layer)
            layers.append(CompressedLayer(name, size, size, note="Conv1D of transformers stays dense"))
        if not _is_dense(layer) or (isinstance(layer, nn.Embedding) and not embeddings):
            continue
        size, reason = _count(layer), _reason_to_keep(layer, ignore_padding)
        if name in skip:
            layers.append(CompressedLayer(name, size, size, note="skipped"))
        elif reason:
            layers.append(CompressedLayer(name, size, size, note=reason))
        elif shared := next((name for name, one in layer.named_parameters() if users[one] > 1), ""):
            note = f"shares its {shared.rpartition('.')[2]} with another layer"
            layers.append(CompressedLayer(name, size, size, note=note))
        else:
            smaller, lines = _replaced(name, layer, Ranks(rank, error, max_rank), flow)
            layers += lines
            if smaller is not None:
                made[layer] = smaller
    replace_layers(model, made)
    for module in names.values():
        if made and isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False  # in eval() it would give nested tensors to kernels of dense layers
    return Compression(layers, before, _count(model))


def decompress(model: nn.Module) -> list[str]:
    """Replace TT and TTM layers and `TTAttention` of a model in place by dense ones.

    Their parameters are new. Only what `compress` made is replaced: a `padding_idx` that it ignored is not back.

    Parameters
    ----------
    model : nn.Module
        The model, which has such layers and is none itself.

    Returns
    -------
    list of str
        Names of the layers that were replaced.

    Raises
    ------
    ShapeError
        If `model` is itself such a layer.
    """
    if isinstance(model, TTLinear | TTMEmbedding | TTAttention):
        raise ShapeError("the model is a single layer: use to_linear, to_embedding or to_attention")
    made: dict[nn.Module, nn.Module] = {}
    names, inside = [], ""
    for name, layer in model.named_modules():
        if inside and name.startswith(inside):
            continue
        if isinstance(layer, TTAttention):
            made[layer], inside = layer.to_attention(), f"{name}."
        elif isinstance(layer, TTLinear):
            made[layer] = layer.to_linear()
        elif isinstance(layer, TTMEmbedding):
            made[layer] = layer.to_embedding()
        else:
            continue
        names.append(name)
    replace_layers(model, made)
    return names


def replace_layers(model: nn.Module, made: Mapping[nn.Module, nn.Module]) -> None:
    """Replace layers of a model in place, each under all of its names: a module may be in two places."""
    for module in list(model.modules()):
        for name, child in list(module._modules.items()):
            if child is not None and child in made:
                setattr(module, name, made[child])


def _reason_to_keep(layer: nn.Module, ignore_padding: bool) -> str:
    """Return why a layer stays dense: it has what its replacement would lose; "" if nothing."""
    for part in layer.modules():
        if part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks:
            return "has hooks"
        if parametrize.is_parametrized(part):
            return "has a parametrization"
    if isinstance(layer, nn.Embedding) and (option := option_to_lose(layer, ignore_padding)):
        return f"has {option}" + (": ignore_padding=True replaces it" if "padding" in option else "")
    return ""


def _is_dense(layer: nn.Module) -> bool:
    # No subclasses of Linear: modules that use one read its weight themselves.
    return type(layer) in (nn.Linear, nn.Embedding) or _is_attention(layer)


def _is_attention(layer: nn.Module) -> bool:
    """Return True for PyTorch attention that `TTAttention` can replace: one width, no bias_k, no add_zero_attn."""
    if type(layer) is not nn.MultiheadAttention:
        return False
    return layer._qkv_same_embed_dim and layer.bias_k is None and not layer.add_zero_attn


def _replaced(name: str, layer: Any, ranks: Ranks, flow: str) -> tuple[nn.Module | None, list[CompressedLayer]]:
    """Return the tensor layer for a dense layer, or None if it would not be smaller, and the lines of the report."""
    if _is_attention(layer):
        return _replaced_attention(name, layer, ranks, flow)
    size = _count(layer)
    if layer.weight.is_meta or not bool(torch.isfinite(layer.weight).all()):
        raise ShapeError(f"{name}: the weight has no values, or NaN or infinite ones: load or initialize it first")
    smaller = _made(layer, ranks.rank, ranks.error, flow)
    if ranks.most is not None and max(_ranks_of(smaller)) > ranks.most:
        smaller = _made(layer, [min(rank, ranks.most) for rank in _ranks_of(smaller)], None, flow)
    if _count(smaller) >= size:
        return None, [CompressedLayer(name, size, size, note="cores would not be smaller")]
    with torch.no_grad():
        type_of_norm = torch.promote_types(layer.weight.dtype, torch.float32)  # norms of half precision overflow
        weight, rebuilt = layer.weight.to(type_of_norm), smaller.to_dense().to(type_of_norm)
        relative = float((rebuilt - weight).norm() / weight.norm().clamp_min(torch.finfo(type_of_norm).tiny))
    return smaller, [CompressedLayer(name, size, _count(smaller), _ranks_of(smaller), relative)]


def _made(layer: Any, rank: Any, error: float | None, flow: str) -> TTLinear | TTMEmbedding:
    if isinstance(layer, nn.Linear):
        return TTLinear.from_linear(layer, rank, error, flow=flow)
    return TTMEmbedding.from_embedding(layer, rank, error, ignore_padding=True)  # `_reason_to_keep` has looked


def _ranks_of(layer: TTLinear | TTMEmbedding) -> tuple[int, ...]:
    return tuple(core.shape[-1] for core in layer.cores)[:-1]


def _replaced_attention(name: str, layer: nn.MultiheadAttention, ranks: Ranks, flow: str):
    """Return a `TTAttention` in which TT layers replace those of the four matrices that get smaller."""
    size, bias = layer.embed_dim, layer.in_proj_bias
    parts, lines = {}, []
    for n, part in enumerate(("query", "key", "value", "output")):
        dense = layer.out_proj
        weight, own_bias, weights, biases = dense.weight, dense.bias, dense.weight, dense.bias
        if part != "output":
            rows = slice(n * size, (n + 1) * size)
            weight, own_bias = layer.in_proj_weight[rows], None if bias is None else bias[rows]
            weights, biases = layer.in_proj_weight, bias
        dense = nn.Linear(size, size, own_bias is not None, weight.device, weight.dtype)
        with torch.no_grad():
            dense.weight.copy_(weight)
            dense.weight.requires_grad_(weights.requires_grad)
            if own_bias is not None:
                dense.bias.copy_(own_bias)
                dense.bias.requires_grad_(biases.requires_grad)
        smaller, line = _replaced(f"{name}.{part}", dense, ranks, flow)
        parts[part] = smaller or dense
        lines += line
    made = TTAttention(**parts, num_heads=layer.num_heads, batch_first=layer.batch_first, dropout=layer.dropout)
    return made.train(layer.training), lines


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
