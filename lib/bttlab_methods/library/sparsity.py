"""Weights of which most stay 0: lottery tickets."""

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.utils.prune import L1Unstructured

from bttlab_methods.layers import linear_layers, weights
from bttlab_methods.method import Method
from bttlab_methods.training import Training


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
