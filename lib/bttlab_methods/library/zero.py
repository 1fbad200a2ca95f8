"""ZeRO: what a step holds, split over processes."""

import warnings
from dataclasses import dataclass

from torch import Tensor, nn

from bttlab_methods.parallel import WHOLE_MATRICES, Parallel, shared_losses
from bttlab_methods.training import Batch, Training


@dataclass(frozen=True)
class Zero(Parallel):
    """Split parameters, gradients and optimizer state over processes; a layer is put together when it is needed.

    Parameters
    ----------
    processes : int
    """

    name = "zero"
    source = "Rajbhandari et al., arXiv 1910.02054, section 5.3 (stage 3); torch.distributed.fsdp.fully_shard"
    excludes = Parallel.excludes | WHOLE_MATRICES

    def place(self, training: Training) -> None:
        """Shard the model, in groups of layers that are put together at a time."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor import Shard

        # It warns of views that may be changed in place: nothing here changes what a layer returns.
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")

        def split(parameter: nn.Parameter):
            """Along the first dimension that divides; the first modes of a core are too small."""
            even = (i for i, size in enumerate(parameter.shape) if size % self.processes == 0)
            return Shard(next(even, 0))

        mesh, model = init_device_mesh("cpu", (self.processes,)), training.model
        for layers in (model.embedding, *model.encoders, model.intent_pooler, model.slot_pooler, model):
            fully_shard(layers, mesh=mesh, reshard_after_forward=True, shard_placement_fn=split)

    def losses(self, training: Training, batch: Batch) -> Tensor:
        """Return the losses, of which this rank computes its share."""
        return shared_losses(training.model, batch)
