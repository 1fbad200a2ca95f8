"""Data parallelism: each process a share of the batch."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from bttlab_methods.parallel import Parallel, shared_losses
from bttlab_methods.training import Batch, Training


@dataclass(frozen=True)
class DataParallel(Parallel):
    """Split every batch over processes that each hold the whole model, and average their gradients.

    Parameters
    ----------
    processes : int
    """

    name = "data-parallel"
    source = "Li et al., arXiv 2006.15704, section 3; torch.nn.parallel.DistributedDataParallel"

    def place(self, training: Training) -> None:
        """Let PyTorch average the gradients as they are found, in place."""
        training.extra[self.name] = DistributedDataParallel(training.model, gradient_as_bucket_view=True)

    def losses(self, training: Training, batch: Batch) -> Tensor:
        """Return the losses, of which this rank computes its share."""
        return shared_losses(training.extra[self.name], batch)
