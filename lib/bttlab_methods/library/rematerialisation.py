"""Rematerialisation: activations that are computed again instead of kept."""

from dataclasses import dataclass
from functools import partial

from torch.utils.checkpoint import checkpoint

from bttlab_methods.method import Method
from bttlab_methods.training import Training


@dataclass(frozen=True)
class Rematerialisation(Method):
    """Keep only what goes into each encoder; the backward pass computes what is inside once more."""

    name = "rematerialisation"
    family = "memory"
    source = "Chen et al., arXiv 1604.06174, section 4.1; torch.utils.checkpoint"
    changes = frozenset({"saved activations"})

    def change_model(self, training: Training) -> None:
        """Checkpoint each encoder; modules and parameters keep their names."""
        for encoder in set(training.model.encoders):  # which may be the same one more than once
            encoder.forward = partial(checkpoint, encoder.forward, use_reentrant=False)
