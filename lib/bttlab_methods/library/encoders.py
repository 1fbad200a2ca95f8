"""Models of another depth, width or attention, or of few weights: encoders that are shared, stacked, pruned …"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.prune import L1Unstructured

from bttlab_methods.layers import linear_layers, weights
from bttlab_methods.method import Method
from bttlab_methods.setting import MethodError, Setting
from bttlab_methods.training import Batch, Training


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

    New encoder i copies encoder i - n, where n is the number before; all other parameters are unchanged.
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
class StochasticDepth(Method):
    """Leave encoders out of training steps at random: deeper ones more often, and more often as training goes on.

    Encoder l of L stays with probability 1 - l/L (1 - theta); theta falls from 1 to `survival` as
    (1 - survival) exp(-speed * part of the budget used) + survival.
    """

    name = "stochastic-depth"
    family = "incremental learning"
    source = "Huang et al., arXiv 1603.09382, equations 2, 4 and 5; schedule: Zhang and He, arXiv 2010.13369"
    changes = frozenset({"encoders"})
    ranges = ("survival in (0, 1]", "speed in [0, inf)")

    survival: float = 0.7  # probability with which the last encoder stays at the end
    speed: float = 10.0  # of the fall

    def change_model(self, training: Training) -> None:
        for encoder in training.model.encoders:  # modules and parameters keep their names
            encoder.kept, encoder.keep = True, 1.0
            encoder.forward = partial(keep_or_drop, encoder, encoder.forward)
        training.extra[self.name] = []  # of each step, how many encoders acted

    def change_batch(self, training: Training, batch: Batch) -> Batch:
        # After the budget all act, for then a step only measures.
        encoders = training.model.encoders
        theta = (1 - self.survival) * math.exp(-self.speed * training.progress) + self.survival
        for i, encoder in enumerate(encoders, 1):
            encoder.keep = 1 - i / len(encoders) * (1 - theta)
            encoder.kept = training.progress == 1 or training.random.random() < encoder.keep
        if training.progress < 1:
            training.extra[self.name].append(sum(encoder.kept for encoder in encoders))
        return batch

    def finish(self, training: Training) -> dict[str, Any]:
        return {"encoders_per_step": float(np.mean(training.extra[self.name] or [0]))}


def keep_or_drop(encoder: nn.Module, encode: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return encode(x), or x if a training step drops the encoder; else the expectation x + keep (encode(x) - x).

    `encoder.kept` says whether it acts in the step, `encoder.keep` with which probability. x is (..., T, hidden).
    """
    if encoder.training:
        return encode(x) if encoder.kept else x
    return x + encoder.keep * (encode(x) - x)


@dataclass(frozen=True)
class Width(Method):
    """Make the model wider or narrower: hidden size and heads times a factor, a head's size as before.

    In tensor format the greatest mode of the hidden size grows, the ranks stay.
    """

    name = "width"
    family = "sparse training"
    source = "Li et al., arXiv 2002.11794, section 3 (train large)"
    changes = frozenset({"width"})

    factor: float = 1.5  # of the hidden size; several runs, such as width:factor=0.5 and width:factor=2, make a sweep

    def change_setting(self, setting: Setting) -> Setting:
        config, modes = setting.config, {}
        for name in ("linear_out_modes", "linear_in_modes", "embedding_column_modes"):
            sizes = getattr(config, name)
            place = sizes.index(largest := max(sizes))
            modes[name] = (*sizes[:place], self._whole(f"a mode of {name}", largest), *sizes[place + 1 :])
        sizes = {name: self._whole(name, getattr(config, name)) for name in ("heads", "hidden_size")}
        return replace(setting, config=replace(config, **sizes, **modes))

    def _whole(self, name: str, value: int) -> int:
        scaled = self.factor * value
        if scaled < 1 or scaled != round(scaled):
            raise MethodError(
                f"width: factor is {self.factor}: it makes {name} {scaled:g} of {value}, which must be a whole number "
                "of at least 1; take 0.5, 1.5 or 2"
            )
        return round(scaled)


@dataclass(frozen=True)
class LotteryTicket(Method):
    """Prune weights by magnitude in rounds, rewind those that survive to an early step, train them to the end.

    Each matrix of encoders and poolers (each core, in tensor format) loses the same part of its weights. Every round
    goes through the whole schedule of the learning rate; rounds after the first start where they rewind to.
    """

    name = "lottery-ticket"
    family = "sparse training"
    source = "Frankle and Carbin, arXiv 1803.03635, section 1; rewinding: Frankle et al., arXiv 1903.01611"
    changes = frozenset({"weights kept"})
    excludes = frozenset({"encoders", "trained parameters", "ranks"})  # what is pruned must stay as it is
    ranges = ("sparsity in (0, 1)", "rounds in [1, inf)", "search in (0, 1)", "rewind in [0, 1)")

    sparsity: float = 0.8  # part of the weights that is gone after the last round
    rounds: int = 2  # of pruning
    search: float = 0.4  # part of the budget before the last pruning; the ticket is trained in the rest
    rewind: float = 0.1  # part of the first round after which values are kept to rewind to

    def change_model(self, training: Training) -> None:
        pruned = [weight for layer in linear_layers(training.model) for weight in weights(layer)]
        training.extra[self.name] = {"round": 0, "early": None, "pruned": pruned, "masks": []}

    def schedule(self, training: Training, progress: float) -> float:
        """Return the part of this round that is over; of a later one, with what it does not repeat."""
        within = self._within(training, progress)
        return self.rewind + (1 - self.rewind) * within if training.extra[self.name]["round"] else within

    def after_update(self, training: Training) -> None:
        """Keep the early values, end a round, hold pruned weights at 0."""
        state = training.extra[self.name]
        if state["early"] is None and self._within(training, training.progress) >= self.rewind:
            state["early"] = [parameter.detach().clone() for parameter in training.trained]
        while state["round"] < self.rounds and self._within(training, training.progress) >= 1:
            state["round"] += 1
            self._end_round(training, state)
        with torch.no_grad():
            for weight, mask in zip(state["pruned"], state["masks"], strict=False):
                weight.mul_(mask)

    def finish(self, training: Training) -> dict[str, Any]:
        state = training.extra[self.name]
        left, total = (sum(map(count, state["masks"])) for count in (lambda one: int(one.sum()), torch.Tensor.numel))
        return {"pruning_rounds": state["round"], "sparsity": 1 - left / total if total else 0.0}

    def _within(self, training: Training, progress: float) -> float:
        """Return the part of the current round that is over."""
        done = training.extra[self.name]["round"]
        start, end = (self.search * i / self.rounds for i in (done, done + 1))
        return (progress - start) / ((end if done < self.rounds else 1.0) - start)

    def _end_round(self, training: Training, state: dict[str, Any]) -> None:
        gone = 1 - (1 - self.sparsity) ** (state["round"] / self.rounds)
        state["masks"] = [
            L1Unstructured(round(gone * weight.numel())).compute_mask(weight, torch.ones_like(weight))
            for weight in state["pruned"]
        ]
        with torch.no_grad():
            for parameter, early in zip(training.trained, state["early"], strict=True):
                parameter.copy_(early)
        if state["round"] == self.rounds:
            state["early"] = []  # nothing rewinds any more
        training.restart_optimizer()


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
