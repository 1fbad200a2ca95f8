"""AutoProg: a model that grows in stages, to depths that a supernet of all of them chooses."""

import copy
import statistics
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bttlab.methods.method import Method, MethodError
from bttlab.methods.training import Batch, Training

MEMORY = 0.9  # of the mean of the encoders' parameters, over updates


@dataclass(frozen=True)
class AutoProg(Method):
    """Grow in stages to the depth that promises the least loss for its cost; new encoders are means of the old.

    A stage begins with a search: the model is as deep as it will be, and each step trains as many of its first encoders
    as are drawn. The depth that stays has the least mean loss times cost^`alpha`; the last stage has all encoders. New
    ones start as the running means of those that were there (the paper's momentum growth). A depth's cost is its
    encoders and one for the rest, counted and not clocked, so that a run repeats to the bit. The paper also grows the
    input; utterances stay whole here.

    Parameters
    ----------
    stages : int
    share : float
        Part of the budget after which the last stage begins.
    search : float
        Part of a stage in which depths are tried.
    alpha : float
        Weight of the cost.
    """

    name = "autoprog"
    family = "incremental learning"
    source = "Li et al., arXiv 2203.14509, sections 3.2 and 3.3 (automated progressive learning, momentum growth)"
    changes = frozenset({"encoders"})
    excludes = frozenset({"ranks"})  # which are counted for the encoders of the start

    stages: int = 3
    share: float = 0.5
    search: float = 0.3
    alpha: float = 0.5

    def __post_init__(self) -> None:
        if not (self.stages >= 2 and 0 < self.share < 1 and 0 < self.search < 1 and self.alpha >= 0):
            raise MethodError(
                f"{self.describe()}: stages must be at least 2, share and search between 0 and 1, alpha at least 0; "
                "take stages=3,share=0.5,search=0.3,alpha=0.5"
            )

    def change_setting(self, setting):
        """Check that there is something to grow by."""
        if setting.config.encoders < 2:
            raise MethodError(f"method {self.name}: a model of one encoder cannot grow; pass --encoders 2")
        return setting

    def change_model(self, training: Training) -> None:
        """Begin with a search among all depths."""
        encoders = list(training.model.encoders)
        training.extra[self.name] = {"all": encoders, "depth": 1, "depths": [], "seen": {}, "means": None}

    def change_batch(self, training: Training, batch: Batch) -> Batch:
        """In a search, draw how many encoders this step has."""
        state = training.extra[self.name]
        if state["seen"] is not None:
            depth = int(training.random.integers(state["depth"], len(state["all"]) + 1))
            training.model.encoders = nn.ModuleList(state["all"][:depth])
        return batch

    def objective(self, training: Training, loss: Tensor) -> Tensor:
        """Return the loss; in a search, note it."""
        state = training.extra[self.name]
        if state["seen"] is not None:
            state["seen"].setdefault(len(training.model.encoders), []).append(loss.item())
        return loss

    def after_update(self, training: Training) -> None:
        """Follow the means; end a search, or a stage, when its time has come."""
        state, length = training.extra[self.name], self.share / (self.stages - 1)
        while len(state["depths"]) < self.stages:
            self._follow(state)
            if state["seen"] is not None:
                if training.progress < (len(state["depths"]) + self.search) * length:
                    return
                state["depth"] = self.best(state["seen"]) if state["seen"] else state["depth"]
                state["seen"] = None
                state["depths"].append(state["depth"])
                training.model.encoders = nn.ModuleList(state["all"][: state["depth"]])
            if training.progress < len(state["depths"]) * length:
                return
            self._grow(state)
            if len(state["depths"]) == self.stages - 1:
                state["depths"].append(len(state["all"]))
            else:
                state["seen"] = {}
            training.model.encoders = nn.ModuleList(state["all"])
            training.restart_optimizer()

    def best(self, seen: dict[int, list[float]]) -> int:
        """Return the depth of the least loss times cost^alpha, of losses by depth; of each, the later half counts."""

        def price(depth: int) -> float:
            return statistics.fmean(seen[depth][len(seen[depth]) // 2 :]) * (depth + 1) ** self.alpha

        return min(seen, key=price)

    def _follow(self, state: dict[str, Any]) -> None:
        now = [[parameter.detach() for parameter in encoder.parameters()] for encoder in state["all"]]
        if state["means"] is None:
            state["means"] = [[parameter.clone() for parameter in parameters] for parameters in now]
        for mean, parameters in zip(state["means"], now, strict=True):
            torch._foreach_lerp_(mean, parameters, 1 - MEMORY)

    @torch.no_grad()
    def _grow(self, state: dict[str, Any]) -> None:
        for i in range(state["depth"], len(state["all"])):
            below = i % state["depth"]
            state["all"][i] = copy.deepcopy(state["all"][below])
            for parameter, mean in zip(state["all"][i].parameters(), state["means"][below], strict=True):
                parameter.copy_(mean)
        state["means"] = None

    def finish(self, training: Training) -> dict[str, Any]:
        """Return the depths of the stages."""
        return {"depths": training.extra[self.name]["depths"]}
