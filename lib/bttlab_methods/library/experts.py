"""Mixture of experts: feed-forward layers of which a gate chooses some for each token."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bttlab_methods.method import Method
from bttlab_methods.setting import MethodError, Setting
from bttlab_methods.training import Training

PARTS = 20  # of the budget, in each of which the loads are counted


class Experts(nn.Module):
    """The sum of the `active` experts with the highest odds of each token, each times its odds.

    The odds are the softmax of `gate`; of several chosen experts they are divided by their sum. Other experts compute
    nothing for the token. After a call `loads` has each expert's part of the tokens, whose sum is `active`, and
    `balance`, of shape (), the experts' number times the sum of loads times mean odds: `active` if all are alike.
    """

    def __init__(self, hidden: int, width: int, experts: int, active: int, activate: Callable[[Tensor], Tensor]):
        super().__init__()
        self.active, self.activate = active, activate
        self.gate = nn.Linear(hidden, experts, bias=False)
        self.first = nn.ModuleList(nn.Linear(hidden, width) for _ in range(experts))
        self.second = nn.ModuleList(nn.Linear(width, hidden) for _ in range(experts))
        for layer in (self.gate, *self.first, *self.second):
            nn.init.xavier_normal_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., hidden) to the same shape."""
        tokens = x.reshape(-1, x.shape[-1])
        odds = self.gate(tokens).softmax(-1)
        factors, chosen = odds.topk(self.active, -1)
        if self.active > 1:
            factors = factors / factors.sum(-1, keepdim=True)
        y = torch.zeros_like(tokens)
        for number, (first, second) in enumerate(zip(self.first, self.second, strict=True)):
            rows, places = (chosen == number).nonzero(as_tuple=True)
            if len(rows):
                found = second(self.activate(first(tokens[rows])))
                y = y.index_add(0, rows, (factors[rows, places, None] * found).to(y.dtype))
        self.loads = torch.bincount(chosen.flatten(), minlength=len(self.first)) / len(tokens)
        self.balance = len(self.first) * (self.loads * odds.mean(0)).sum()
        return y.view(x.shape)


@dataclass(frozen=True)
class MixtureOfExperts(Method):
    """Replace each feed-forward layer by experts: a gate chooses some for each token, and a loss balances their loads.

    An expert is as wide as the dense layer over the number of those that are active: a token takes as many
    multiplications as in the dense model, whatever is chosen, and the gate's. With all active the mixture is dense.
    The loss has `balance` times the sum of the layers' `Experts.balance`.
    """

    name = "mixture-of-experts"
    family = "sparse training"
    source = (
        "Fedus et al. (Switch), arXiv 2101.03961, equations 1, 2 and 4; active=2: Shazeer et al., arXiv 1701.06538; "
        "dense and sparse: Xia et al., arXiv 2408.04693"
    )
    changes = frozenset({"feed-forward layers"})
    excludes = frozenset({"linear layers", "encoders", "initialisation", "processes"})
    ranges = ("experts in [2, inf)", "active in [1, inf)", "balance in [0, inf)")

    experts: int = 4
    active: int = 1  # experts of a token
    balance: float = 0.01  # factor of the loss that balances loads

    def change_setting(self, setting: Setting) -> Setting:
        if self.active > self.experts or setting.config.hidden_size % self.active:
            raise MethodError(
                f"method {self.name}: active is {self.active}: it must be at most experts, {self.experts}, and divide "
                f"the hidden size, {setting.config.hidden_size}; take 1 or 2"
            )
        return setting

    def change_model(self, training: Training) -> None:
        hidden = training.setting.config.hidden_size
        for encoder in training.model.encoders:
            made = Experts(hidden, hidden // self.active, self.experts, self.active, encoder.activate)
            encoder.first, encoder.activate, encoder.second = nn.Identity(), nn.Identity(), made.to(training.device)
        training.extra[self.name] = np.zeros((PARTS, len(training.model.encoders), self.experts))

    def objective(self, training: Training, loss: Tensor) -> Tensor:
        return loss + self.balance * sum(encoder.second.balance for encoder in training.model.encoders)

    def after_update(self, training: Training) -> None:
        part = min(PARTS - 1, int(PARTS * training.progress))
        training.extra[self.name][part] += [encoder.second.loads.tolist() for encoder in training.model.encoders]

    def finish(self, training: Training) -> dict[str, Any]:
        """Return the experts' parts of the tokens: by part of the budget, encoder and expert; they add up to 1.

        Parts without a step, as of a run that was stopped, are left out; beside the loads is where each part ends, in
        per cent of the budget.
        """
        counts = training.extra[self.name]
        parts = np.flatnonzero(counts.sum((1, 2)) > 0)
        counts = counts[parts]
        return {
            "expert_loads": (counts / counts.sum(2, keepdims=True)).round(4).tolist(),
            "expert_loads_until": (100 * (parts + 1) / PARTS).tolist(),
        }
