"""ZeRO-Offload: the optimizer and its state on the host."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from bttlab.methods.method import Method
from bttlab.methods.training import LEARNING_RATE, Training

ON_CPU = "nothing to see: on a CPU run the host is where the model lies, and has it twice; take --device cuda"


@dataclass(frozen=True)
class ZeroOffload(Method):
    """Keep AdamW, its moments and its own copy of the parameters on the host; gradients go there, parameters come back.

    The device holds parameters, gradients and activations. All gradients go after the backward pass, where the paper
    sends each as it is found; of its delayed update, and of its split over several GPUs, there is nothing here.
    """

    name = "zero-offload"
    family = "memory"
    source = "Ren et al., arXiv 2101.06840, section 4.1 (offload strategy)"
    changes = frozenset({"optimizer"})
    excludes = frozenset({"processes", "ranks", "weights kept", "fp16"})  # which act on what the host has

    def make_optimizer(self, training: Training) -> torch.optim.Optimizer:
        """Return AdamW on the host."""
        return HostAdamW(training.trained, LEARNING_RATE)

    def finish(self, training: Training) -> dict[str, Any]:
        """Return what lies on the host."""
        held = training.optimizer.state.values()
        names = ("copy", "exp_avg", "exp_avg_sq")
        facts = {"host_bytes": sum(state[name].nbytes for state in held for name in names if name in state)}
        return facts | ({"zero_offload": ON_CPU} if training.device.type == "cpu" else {})


class HostAdamW(torch.optim.Optimizer):
    """AdamW on copies of the parameters in the host's memory.

    Parameters
    ----------
    parameters : list of nn.Parameter
        On any device; they get the updated copies.
    lr : float

    Attributes
    ----------
    host : torch.optim.AdamW
        Of the copies, in the parameters' order.
    """

    def __init__(self, parameters: list[nn.Parameter], lr: float):
        super().__init__(parameters, {"lr": lr})
        copies = [nn.Parameter(parameter.detach().to("cpu", copy=True)) for parameter in parameters]
        self.host = torch.optim.AdamW(copies, lr=lr, fused=True)

    @torch.no_grad()
    def step(self) -> None:
        """Send the gradients, update on the host, bring the parameters back."""
        pairs = list(zip(self.param_groups[0]["params"], self.host.param_groups[0]["params"], strict=True))
        for parameter, copy in pairs:
            copy.grad = None if parameter.grad is None else parameter.grad.cpu()
            parameter.grad = None
        self.host.param_groups[0]["lr"] = self.param_groups[0]["lr"]
        self.host.step()
        for parameter, copy in pairs:
            parameter.copy_(copy)
            copy.grad = None
            self.state[parameter] = {"copy": copy, **self.host.state[copy]}
