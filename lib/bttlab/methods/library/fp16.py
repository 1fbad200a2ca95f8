"""Mixed precision in FP16, whose small exponent wants a scaled loss."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bttlab.methods.method import Method, MethodError
from bttlab.methods.training import Training


@dataclass(frozen=True)
class Fp16(Method):
    """Compute the layers in FP16 by torch.amp, with a loss that is scaled so that gradients do not vanish.

    A step with a gradient that is not finite is left out and halves the scale; `growth` good ones double it.
    Parameters, gradients, norms and losses stay FP32. A CPU without FP16 arithmetic takes several times as long.

    Parameters
    ----------
    scale : float
        Of the loss, at the start.
    growth : int
        Steps in a row after which the scale doubles.
    """

    name = "fp16"
    family = "memory"
    source = "Micikevicius et al., arXiv 1710.03740, sections 3.1 and 3.2; torch.amp.GradScaler"
    changes = frozenset({"forward precision"})
    excludes = frozenset({"processes"})  # ranks would have to agree on what is finite

    scale: float = 65536.0
    growth: int = 100

    def __post_init__(self) -> None:
        if not 0 < self.scale <= 2.0**32 or self.growth < 1:
            raise MethodError(
                f"{self.describe()}: scale must be above 0 and at most 2^32, growth at least 1; take "
                "scale=65536,growth=100"
            )

    def change_model(self, training: Training) -> None:
        """Make PyTorch's scaler."""
        scaler = torch.amp.GradScaler(training.device.type, self.scale, growth_interval=self.growth)
        training.extra[self.name] = {"scaler": scaler, "skipped": 0}

    def around_forward(self, training: Training) -> AbstractContextManager:
        """Return PyTorch's autocast."""
        return torch.autocast(training.device.type, torch.float16)

    def scaled(self, training: Training, value: Tensor) -> Tensor:
        """Return the value times the scale."""
        return training.extra[self.name]["scaler"].scale(value)

    @contextmanager
    def around_backward(self, training: Training) -> Iterator[None]:
        """Take the scale out of the gradients again, before any method looks at them."""
        yield
        training.extra[self.name]["scaler"].unscale_(training.optimizer)

    def step(self, training: Training) -> bool:
        """Update, unless a gradient is not finite."""
        state = training.extra[self.name]
        scaler, before = state["scaler"], state["scaler"].get_scale()
        scaler.step(training.optimizer)
        scaler.update()
        state["skipped"] += scaler.get_scale() < before
        return True

    def finish(self, training: Training) -> dict[str, Any]:
        """Return the last scale, and the steps that were left out."""
        state = training.extra[self.name]
        return {"loss_scale": state["scaler"].get_scale(), "steps_left_out": state["skipped"]}
