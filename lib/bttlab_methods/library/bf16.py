"""Mixed precision: products, and the activations that they leave, in bfloat16."""

from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from bttlab_methods.method import Method
from bttlab_methods.training import Training


@dataclass(frozen=True)
class MixedPrecision(Method):
    """Compute the layers in bfloat16 by torch.amp; parameters, gradients, norms and losses stay FP32.

    The backward pass needs the weights in bfloat16 too: with few tokens in a batch and dense layers these copies
    weigh more than what the activations save.
    """

    name = "bf16"
    family = "memory"
    source = "Micikevicius et al., arXiv 1710.03740, section 3.1; Kalamkar et al., arXiv 1905.12322; torch.amp"
    changes = frozenset({"forward precision"})

    def around_forward(self, training: Training) -> AbstractContextManager:
        """Return PyTorch's autocast. With bfloat16 no loss needs scaling: its exponent is FP32's."""
        return torch.autocast(training.device.type, torch.bfloat16)
