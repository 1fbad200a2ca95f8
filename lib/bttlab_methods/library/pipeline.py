"""Pipeline parallelism: the encoders, one after the other, in processes."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from bttlab.model import sample_losses
from bttlab_methods.parallel import Parallel
from bttlab_methods.setting import MethodError, Setting
from bttlab_methods.training import Batch, Training


@dataclass(frozen=True)
class Pipeline(Parallel):
    """Give each process some of the encoders, and send micro-batches through them one behind the other.

    GPipe's schedule: all forward passes, then all backward passes. The stages of torch.distributed.pipelining take
    tensors of one shape; utterances have many lengths.

    Parameters
    ----------
    processes : int
        At most the number of encoders.
    micro_batches : int
        Parts of a batch, at most.
    """

    name = "pipeline"
    source = "Huang et al. (GPipe), arXiv 1811.06965, section 2.2"

    micro_batches: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.micro_batches < 1:
            raise MethodError(f"method {self.name}: micro_batches is {self.micro_batches}: it must be at least 1")

    def change_setting(self, setting: Setting) -> Setting:
        """Check that there is an encoder for each process."""
        if setting.config.encoders < self.processes:
            raise MethodError(
                f"method {self.name}: processes is {self.processes}: it must be at most the number of encoders, "
                f"{setting.config.encoders}; pass --encoders {self.processes}"
            )
        return setting

    def place(self, training: Training) -> None:
        """Drop what belongs to the other stages; what stays keeps its name."""
        model, rank = training.model, dist.get_rank()
        for stage, encoders in enumerate(np.array_split(np.arange(len(model.encoders)), self.processes)):
            if stage != rank:
                for i in encoders:
                    model.encoders[i] = nn.Identity()
        if rank > 0:
            model.embedding = nn.Identity()
        if rank < self.processes - 1:
            for name in ("intent_pooler", "slot_pooler", "intent_head", "slot_head"):
                setattr(model, name, nn.Identity())

    def losses(self, training: Training, batch: Batch) -> Tensor:
        """Return the losses; in every rank but the last their gradient is what the next rank sends back."""
        model, samples, rank = training.model, batch.samples, dist.get_rank()
        last = self.processes - 1
        length = int(samples.lengths[0])
        results = []
        for part in np.array_split(np.arange(len(samples)), min(len(samples), self.micro_batches)):
            if rank == 0:
                x = model.embedding(_tensor(samples.tokens[part, :length]))
            else:
                shape = (len(part), length, model.config.hidden_size)
                x = _Receive.apply(shape, torch.empty((), requires_grad=True))
            for encoder in model.encoders:
                x = encoder(x)
            if rank < last:
                results.append(_Send.apply(x))
            else:
                gold = _tensor(samples.intents[part]), _tensor(samples.slots[part, 1:length])
                results.append(sample_losses(*model.label(x), *gold))
        losses = torch.cat(results).detach() if rank == last else torch.empty(len(samples))
        dist.broadcast(losses, last)
        return torch.cat(results) if rank == last else losses + torch.stack(results).sum()


class _Send(torch.autograd.Function):
    """Sends x to the next rank, and is 0; the backward pass gets x's gradient from there."""

    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        dist.send(x.contiguous(), dist.get_rank() + 1)
        return x.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx, _):
        grad = torch.empty(ctx.shape)
        dist.recv(grad, dist.get_rank() + 1)
        return grad


class _Receive(torch.autograd.Function):
    """A tensor of a shape that the previous rank sends; the backward pass, which `differentiated` asks for, answers."""

    @staticmethod
    def forward(ctx, shape, differentiated):
        received = torch.empty(shape)
        dist.recv(received, dist.get_rank() - 1)
        return received

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        dist.send(grad.contiguous(), dist.get_rank() - 1)
        return None, None


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(array.astype(np.int64))
