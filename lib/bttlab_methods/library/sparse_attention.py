"""Sparse attention: a window of neighbours, and [CLS]."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bttlab_methods.method import Method
from bttlab_methods.training import Training


@dataclass(frozen=True)
class SparseAttention(Method):
    """Let a token see its neighbours and [CLS] only, and [CLS] all; by a mask, which saves no time by itself.

    Parameters
    ----------
    window : int
        Neighbours on each side.
    """

    name = "sparse-attention"
    family = "hardware view"
    source = "Child et al., arXiv 1904.10509; Beltagy et al., arXiv 2004.05150, section 3.1"
    changes = frozenset({"attention"})

    window: int = 3

    def change_model(self, training: Training) -> None:
        """Mask the attention of each encoder."""
        for encoder in training.model.encoders:
            encoder.attend = partial(attend, window=self.window)

    def finish(self, training: Training) -> dict[str, Any]:
        """Return the part of the pairs of tokens that attend, over the training split."""
        lengths = training.samples.lengths.tolist()
        seen = sum(int(pattern(length, self.window).sum()) for length in lengths)
        return {"attended_pairs": seen / sum(length**2 for length in lengths)}


def pattern(length: int, window: int, device: torch.device | None = None) -> Tensor:
    """Return which token (row) sees which (column): bool, shape (length, length)."""
    place = torch.arange(length, device=device)
    near = (place[:, None] - place).abs() <= window
    return near | (place == 0) | (place[:, None] == 0)


def attend(query: Tensor, key: Tensor, value: Tensor, window: int) -> Tensor:
    """Return what `bttlab.model.transformer.Encoder.attend` does, of the pairs in `pattern` alone."""
    mask = pattern(query.shape[-2], window, query.device)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
