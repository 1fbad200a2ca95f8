"""The table of a model's tokens cut to the ids that a corpus has, and grown back."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bttlab.tensor.compression import replace_layers
from bttlab.tensor.layers import TTMEmbedding
from bttlab.tensor.shapes import ShapeError


@dataclass(eq=False)
class VocabularyCut:
    """A model whose table of tokens has the rows of some ids alone; made by `cut_vocabulary`.

    Parameters
    ----------
    model : nn.Module
        The model, which was changed in place.
    name : str
        The table's layer in the model.
    kept : np.ndarray
        Its ids in the whole vocabulary, in ascending order, int64 of shape (rows,): row k was row `kept[k]`.
    whole : nn.Embedding
        The table as it was, with all rows.
    unknown : int, optional
        The id whose row stands for ids without one.
    """

    model: nn.Module
    name: str
    kept: np.ndarray
    whole: nn.Embedding
    unknown: int | None = None

    def ids(self, tokens: Any) -> np.ndarray:
        """Return the ids that the cut model has for ids of the whole vocabulary, int64 of the same shape.

        Raises ShapeError for an id that is not kept, unless there is one for unknown tokens.
        """
        tokens = _integers(tokens)
        places = np.searchsorted(self.kept, tokens).clip(max=len(self.kept) - 1)
        missing = self.kept[places] != tokens
        outside = tokens[(tokens < 0) | (tokens >= self.whole.num_embeddings)]
        if outside.size:
            raise ShapeError(f"id {outside[0]} is no row of {self.name}, which had {self.whole.num_embeddings}")
        if self.unknown is None and missing.any():
            what = f"id {tokens[missing][0]} is not among the {len(self.kept)} ids that {self.name} was cut to"
            raise ShapeError(f"{what}: cut to the ids of all samples, or give unknown=")
        if self.unknown is not None:
            places[missing] = np.searchsorted(self.kept, self.unknown)
        return places

    @torch.no_grad()
    def grow(self) -> nn.Embedding:
        """Put the whole table back into the model, with the rows that are kept as the model has them now; return it.

        Rows of ids that were not kept are as they were. A table in TTM format becomes a dense one.

        Raises ShapeError if the model has no such table any more.
        """
        layer: Any = self.model.get_submodule(self.name)
        rows = layer.to_dense() if isinstance(layer, TTMEmbedding) else layer.weight
        if tuple(rows.shape) != (len(self.kept), self.whole.embedding_dim):
            wanted = (len(self.kept), self.whole.embedding_dim)
            raise ShapeError(
                f"{self.name} has the shape {tuple(rows.shape)} now, not {wanted}: it was grown or replaced"
            )
        whole = self.whole.to(rows.device, rows.dtype)
        whole.weight[torch.from_numpy(self.kept).to(rows.device)] = rows
        whole.requires_grad_(any(parameter.requires_grad for parameter in layer.parameters()))
        replace_layers(self.model, {layer: whole.train(layer.training)})
        _tell_size(self.model, whole.num_embeddings)
        return whole


def cut_vocabulary(
    model: nn.Module, ids: Iterable[int] | np.ndarray | Tensor, table: str | None = None, unknown: int | None = None
) -> VocabularyCut:
    """Cut a model's table of tokens, in place, to the rows of some ids; `grow` of the result puts the others back.

    Its parameters are new: make the optimizer afterwards. `vocab_size` of a model of transformers follows.

    Parameters
    ----------
    model : nn.Module
        With an `nn.Embedding` of tokens whose weight no other layer has.
    ids : array of int
        The ids to keep, in any order and any number of times: those of a corpus and of special tokens.
    table : str, optional
        The layer of the table. By default what `get_input_embeddings()` of a model of transformers returns, or the
        only `nn.Embedding`.
    unknown : int, optional
        The id whose row stands for ids that are not kept, such as a tokenizer's `unk_token_id`; it is kept, too. By
        default such ids are an error.

    Returns
    -------
    VocabularyCut
        The model with its cut table, and the maps between old ids and new ones.

    Raises
    ------
    ShapeError
        If there is no such table, another layer has its weight, or an id is not one of its rows.
    """
    name, layer = _table_of(model, table)
    kept = np.unique(_integers(ids if isinstance(ids, np.ndarray | Tensor) else list(ids)))
    if not kept.size:
        raise ShapeError("ids to keep must be whole numbers, and at least one: give those of the samples")
    extra = [x for x in (unknown, layer.padding_idx) if x is not None]
    kept = np.unique([*kept.tolist(), *_integers(extra).tolist()])
    if kept[0] < 0 or kept[-1] >= layer.num_embeddings:
        bad = kept[0] if kept[0] < 0 else kept[-1]
        raise ShapeError(f"id {bad} is no row of {name}, which has {layer.num_embeddings}: is it another tokenizer's?")
    for other, module in model.named_modules():
        if module is not layer and any(p is layer.weight for p in module.parameters(recurse=False)):
            raise ShapeError(f"{name} shares its weight with {other}, which has a class for each id: it cannot be cut")
    padding = None if layer.padding_idx is None else int(np.searchsorted(kept, layer.padding_idx))
    weight, cut = layer.weight, nn.Embedding(1, 1, padding_idx=None)
    cut.num_embeddings, cut.embedding_dim, cut.padding_idx = len(kept), layer.embedding_dim, padding
    cut.max_norm, cut.norm_type = layer.max_norm, layer.norm_type
    cut.scale_grad_by_freq, cut.sparse = layer.scale_grad_by_freq, layer.sparse
    rows = weight.detach()[torch.from_numpy(kept).to(weight.device)]
    cut.weight = nn.Parameter(rows.clone(), weight.requires_grad)
    replace_layers(model, {layer: cut.train(layer.training)})
    _tell_size(model, len(kept))
    return VocabularyCut(model, name, kept, layer, unknown)


def _table_of(model: nn.Module, table: str | None) -> tuple[str, nn.Embedding]:
    """Return the name and layer of a model's table of tokens."""
    tables = {name: layer for name, layer in model.named_modules() if type(layer) is nn.Embedding and name}
    listed = ", ".join(tables) or "none"
    if table is not None:
        if table not in tables:
            raise ShapeError(f"table {table!r} is no nn.Embedding of the model; it has {listed}")
        return table, tables[table]
    get: Any = getattr(model, "get_input_embeddings", None)
    if get is not None:
        found = get()
        tables = {name: layer for name, layer in tables.items() if layer is found}
    if len(tables) != 1:
        raise ShapeError(f"which table has the tokens? The model has {listed}: give table=")
    return next(iter(tables.items()))


def _integers(ids: Any) -> np.ndarray:
    """Return ids as int64. Raises ShapeError if they are not whole numbers, or rows of different lengths."""
    try:
        array = np.asarray(ids.detach().cpu() if isinstance(ids, Tensor) else ids)
    except ValueError:
        raise ShapeError(
            "ids are in rows of different lengths: give one list, [x for row in ids for x in row]"
        ) from None
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise ShapeError(f"ids are {array.dtype}: ids to keep must be whole numbers; give those of the samples")
    return array.astype(np.int64)


def _tell_size(model: nn.Module, rows: int) -> None:
    """Set what a model of transformers says of its vocabulary."""
    for module in model.modules():
        config: Any = getattr(module, "config", None)
        if hasattr(config, "vocab_size"):
            config.vocab_size = rows
