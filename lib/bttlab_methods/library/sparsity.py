"""Weights of which most stay 0: 2:4 sparsity and lottery tickets."""

import itertools
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from bttlab_methods.layers import linear_layers, weights
from bttlab_methods.method import Method
from bttlab_methods.training import Training

SHOWN = (
    "masks: this run shows what 2:4 does to the scores, and nothing of the time that a GPU's sparse tensor cores save; "
    "torch.sparse.to_sparse_semi_structured stores such weights on a GPU"
)


@dataclass(frozen=True)
class SparseTwoFour(Method):
    """Use the two largest of every four weights of a row, and let those that are left out come back (SR-STE).

    The gradient goes straight through to all weights; those that are left out also shrink. What is used is chosen again
    in every step. At the end the others are set to 0.

    Parameters
    ----------
    shrinking : float
        What is added to the gradient of a weight that is left out, over the weight; the paper's lambda.
    """

    name = "sparse-2-4"
    family = "sparse training"
    source = "Zhou et al., arXiv 2102.04010, section 3 (SR-STE); pattern: Mishra et al., arXiv 2104.08378, section 3"
    changes = frozenset({"linear layers", "weights kept"})
    ranges = ("shrinking in [0, 1)",)

    shrinking: float = 2e-4

    def change_model(self, training: Training) -> None:
        for layer in linear_layers(training.model):
            if isinstance(layer, nn.Linear):
                layer.forward = partial(self._multiply, layer)

    def _multiply(self, layer: nn.Linear, x: Tensor) -> Tensor:
        return F.linear(x, _TwoOfFour.apply(layer.weight, self.shrinking), layer.bias)

    @torch.no_grad()
    def finish(self, training: Training) -> dict[str, Any]:
        """Set the weights that are left out to 0; return what the others take as a GPU stores them."""
        sparse = [layer for layer in linear_layers(training.model) if isinstance(layer, nn.Linear)]
        for layer in sparse:
            layer.weight.mul_(largest_two_of_four(layer.weight))
        numbers = sum(layer.weight.numel() for layer in sparse)
        kept = 4 * numbers // 2 + numbers // 8  # FP32, and 2 bits for the place of each
        return {"sparse_2_4": SHOWN, "dense_bytes": 4 * numbers, "sparse_bytes": kept}


class _TwoOfFour(torch.autograd.Function):
    """The weight times its mask."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, shrinking: float) -> Tensor:
        used = weight * largest_two_of_four(weight)
        ctx.save_for_backward(weight, used)
        ctx.shrinking = shrinking
        return used

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        weight, used = ctx.saved_tensors
        return gradient + ctx.shrinking * (weight - used), None


def largest_two_of_four(weight: Tensor) -> Tensor:
    """Return which weights, shape (rows, 4 n), are the two largest of their four, by magnitude: bool.

    That is those which at most one other of the four beats; of equals the first does. (`topk` takes twice as long.)
    """
    fours = weight.detach().abs().view(-1, 4).t().contiguous()
    beaten = torch.zeros(fours.shape, dtype=torch.int8, device=weight.device)
    for i, j in itertools.combinations(range(4), 2):
        second = fours[j] > fours[i]
        beaten[i] += second
        beaten[j] += ~second
    return (beaten < 2).t().reshape(weight.shape)


@dataclass(frozen=True)
class LotteryTicket(Method):
    """Prune weights by magnitude in rounds, rewind those that survive to an early step, train them to the end.

    Each matrix of encoders and poolers (each core, in tensor format) loses the same part of its weights. Every round
    goes through the whole schedule of the learning rate; rounds after the first start where they rewind to.

    Parameters
    ----------
    sparsity : float
        Part of the weights that is gone after the last round, 0 to 1.
    rounds : int
        Of pruning.
    search : float
        Part of the budget used by all rounds before the last pruning; the ticket found is trained in the rest.
    rewind : float
        Part of the first round after which values are kept to rewind to.
    """

    name = "lottery-ticket"
    family = "sparse training"
    source = "Frankle and Carbin, arXiv 1803.03635, section 1; rewinding: Frankle et al., arXiv 1903.01611"
    changes = frozenset({"weights kept"})
    excludes = frozenset({"encoders", "trained parameters", "ranks"})  # what is pruned must stay as it is
    ranges = ("sparsity in (0, 1)", "rounds in [1, inf)", "search in (0, 1)", "rewind in [0, 1)")

    sparsity: float = 0.8
    rounds: int = 2
    search: float = 0.4
    rewind: float = 0.1

    def change_model(self, training: Training) -> None:
        pruned = [weight for layer in linear_layers(training.model) for weight in weights(layer)]
        training.extra[self.name] = {"round": 0, "early": None, "pruned": pruned, "masks": []}

    def schedule(self, training: Training, progress: float) -> float:
        """Return the part of this round that is over; of a later one, with what it does not repeat."""
        done, within = training.extra[self.name]["round"], self._within(training, progress)
        return self.rewind + (1 - self.rewind) * within if done else within

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
        left = sum(int(mask.sum()) for mask in state["masks"])
        total = sum(mask.numel() for mask in state["masks"])
        return {"pruning_rounds": state["round"], "sparsity": 1 - left / total if total else 0.0}

    def _within(self, training: Training, progress: float) -> float:
        """Return the part of the current round that is over."""
        done = training.extra[self.name]["round"]
        start, end = (self.search * i / self.rounds for i in (done, done + 1))
        return (progress - start) / ((end if done < self.rounds else 1.0) - start)

    def _end_round(self, training: Training, state: dict[str, Any]) -> None:
        from torch.nn.utils.prune import L1Unstructured

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
