"""Models of another depth or attention: encoders that are shared, stacked or sparser."""

import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bttlab_methods.method import Method
from bttlab_methods.setting import MethodError, Setting
from bttlab_methods.training import Training


class SharedEncoders(Method):
    """Let all encoders share the parameters of the first: the depth of the model with the size of one encoder.

    This is ALBERT's sharing across layers. ALBERT's factorised embedding is left out: `tensor`'s TTM table is smaller.
    """

    name = "shared-encoders"
    family = "parameter sharing"
    source = "Lan et al. (ALBERT), arXiv 1909.11942, section 3.1 (cross-layer parameter sharing)"
    changes = frozenset({"encoders"})
    excludes = frozenset({"initialisation"})  # which treats each encoder by its place, or is given from elsewhere

    def change_model(self, training: Training) -> None:
        encoders = training.model.encoders
        training.model.encoders = nn.ModuleList([encoders[0]] * len(encoders))

    def finish(self, training: Training) -> dict[str, Any]:
        return {"uses_of_the_encoder": len(training.model.encoders)}


@dataclass(frozen=True)
class Stacking(Method):
    """Train with few encoders, then put a copy of them on top, with a new optimizer state, until all are there.

    Encoder i of the deeper model starts as encoder i - n of the n that there were; embedding, poolers and heads go on.
    """

    name = "stacking"
    family = "incremental learning"
    source = "Gong et al., ICML 2019 (Efficient Training of BERT by Progressively Stacking), algorithm 1"
    changes = frozenset({"encoders"})
    excludes = frozenset({"ranks"})  # which are counted for the encoders of the start

    doublings: int = 1  # how often the depth doubles
    share: float = 0.3  # part of the budget after which all encoders are there; the doublings are spread evenly over it

    def change_setting(self, setting: Setting) -> Setting:
        depth = setting.config.encoders
        if self.doublings < 1 or depth % 2**self.doublings:
            raise MethodError(
                f"stacking: doublings is {self.doublings} for {depth} encoder(s): it must be at least 1, and 2 to that "
                "power divide the encoders; take stacking:doublings=1 with --encoders 2"
            )
        return setting

    def change_model(self, training: Training) -> None:
        depth = len(training.model.encoders)
        training.model.encoders = training.model.encoders[: depth >> self.doublings]
        training.extra[self.name] = {"done": 0}

    def after_update(self, training: Training) -> None:
        state = training.extra[self.name]
        while state["done"] < self.doublings and training.progress >= self.share * (state["done"] + 1) / self.doublings:
            state["done"] += 1
            training.model.encoders.extend([copy.deepcopy(encoder) for encoder in training.model.encoders])
            training.restart_optimizer()

    def finish(self, training: Training) -> dict[str, Any]:
        return {"encoders": len(training.model.encoders)}


@dataclass(frozen=True)
class SparseAttention(Method):
    """Let a token see its neighbours and [CLS] only, and [CLS] all; by a mask, which saves no time by itself."""

    name = "sparse-attention"
    family = "hardware view"
    source = "Child et al., arXiv 1904.10509; Beltagy et al., arXiv 2004.05150, section 3.1"
    changes = frozenset({"attention"})

    window: int = 3  # neighbours on each side

    def change_model(self, training: Training) -> None:
        for encoder in training.model.encoders:
            encoder.attend = partial(attend, window=self.window)

    def finish(self, training: Training) -> dict[str, Any]:
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
