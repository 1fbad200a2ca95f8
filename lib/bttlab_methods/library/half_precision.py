"""FP16 with a scaled loss, and activations that wait in the host's memory."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import save_on_cpu

from bttlab_methods.method import Method
from bttlab_methods.training import Training

NOTHING_SAVED = "on a CPU the host's memory is the one that is measured: copies of the activations come on top"


@dataclass(frozen=True)
class FP16(Method):
    """Compute the layers in FP16; the loss is multiplied, so that small gradients are not rounded to 0.

    The factor doubles after some good steps. A step whose gradients overflow updates nothing and halves it.
    """

    name = "fp16"
    family = "memory"
    source = "Micikevicius et al., arXiv 1710.03740, sections 3.1 and 3.2; torch.amp.GradScaler"
    changes = frozenset({"forward precision"})
    ranges = ("scale in (0, inf)", "every in [1, inf)")

    scale: float = 2.0**16  # factor of the loss at the start
    every: int = 100  # good steps after which the factor doubles

    def change_model(self, training: Training) -> None:
        scaler = torch.amp.GradScaler(training.device.type, init_scale=self.scale, growth_interval=self.every)
        training.extra[self.name] = {"scaler": scaler, "skipped": 0}

    def around_forward(self, training: Training) -> AbstractContextManager:
        return torch.autocast(training.device.type, torch.float16)

    def objective(self, training: Training, loss: Tensor) -> Tensor:
        return training.extra[self.name]["scaler"].scale(loss)

    def before_update(self, training: Training) -> None:
        """Divide the gradients by the factor; drop them if one is not finite."""
        state = training.extra[self.name]
        state["scaler"].unscale_(training.optimizer)
        gradients = [p.grad for p in training.trained if p.grad is not None]
        if not torch.nn.utils.get_total_norm(gradients).isfinite():
            training.optimizer.zero_grad(set_to_none=True)
            state["skipped"] += 1
        state["scaler"].update()

    def finish(self, training: Training) -> dict[str, Any]:
        state = training.extra[self.name]
        return {"loss_scale": state["scaler"].get_scale(), "skipped_steps": state["skipped"]}


class ActivationOffloading(Method):
    """Let activations wait for the backward pass in the host's memory; it saves memory on a GPU only."""

    name = "activation-offloading"
    family = "memory"
    source = "Rajbhandari et al. (ZeRO-Infinity), arXiv 2104.07857, section 5.1.3; torch.autograd.graph.save_on_cpu"
    changes = frozenset({"saved activations"})

    def around_forward(self, training: Training) -> AbstractContextManager:
        return save_on_cpu(pin_memory=training.device.type == "cuda")

    def finish(self, training: Training) -> dict[str, Any]:
        return {"offloading": NOTHING_SAVED} if training.device.type == "cpu" else {}
