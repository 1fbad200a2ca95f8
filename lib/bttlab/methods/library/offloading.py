"""Offloading: activations that wait for the backward pass in the host's memory."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from torch.autograd.graph import save_on_cpu

from bttlab.methods.method import Method
from bttlab.methods.training import Training

ON_CPU = "nothing to see: on a CPU run the activations lie in the host's memory anyway; take --device cuda"


@dataclass(frozen=True)
class Offloading(Method):
    """Move what the backward pass needs to the host's memory and back; saves only memory of a GPU."""

    name = "offloading"
    family = "memory"
    source = "Rhu et al., arXiv 1602.08124, section 3; torch.autograd.graph.save_on_cpu"
    changes = frozenset({"saved activations"})

    def around_forward(self, training: Training) -> AbstractContextManager:
        """Return PyTorch's hooks of saved tensors; a GPU copies quicker from and to pinned memory."""
        return save_on_cpu(pin_memory=training.device.type == "cuda")

    def finish(self, training: Training) -> dict[str, Any]:
        """Return what this run could show."""
        saving = ON_CPU if training.device.type == "cpu" else 'see "allocated": the GPU\'s part of the memory'
        return {"offloading": saving}
