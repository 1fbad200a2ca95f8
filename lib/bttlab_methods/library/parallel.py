"""Parallelism and offloading: a run on two processes of this machine, by what PyTorch itself has for many GPUs.

PyTorch's modules for it take seconds to import: methods import them when a run shares its model.
"""

import warnings
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bttlab.model import Transformer
from bttlab.model.transformer import sample_losses
from bttlab_methods.method import Method
from bttlab_methods.setting import MethodError
from bttlab_methods.training import LEARNING_RATE, Batch, Training

PROCESSES = 2
# Bytes that a process sends for each byte of an operation's input, in a ring of two.
_SENT = {
    "c10d.allreduce_": 2 * (PROCESSES - 1) / PROCESSES,
    "c10d._allgather_base_": PROCESSES - 1,
    "c10d._reduce_scatter_base_": (PROCESSES - 1) / PROCESSES,
    "c10d.send": 1,
    "_c10d_functional.all_reduce": 2 * (PROCESSES - 1) / PROCESSES,
    "_c10d_functional.all_gather_into_tensor": PROCESSES - 1,
    "_c10d_functional.reduce_scatter_tensor": (PROCESSES - 1) / PROCESSES,
}
_SECOND_IS_INPUT = ("c10d._allgather_base_", "c10d._reduce_scatter_base_")


class SentBytes(TorchDispatchMode):
    """While entered, counts the bytes that this process sends in collectives and to the next stage."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0.0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = str(function).rpartition(".")[0]
        if name in _SENT:
            tensors = tree_leaves(args[name in _SECOND_IS_INPUT])
            self.count += _SENT[name] * sum(one.nbytes for one in tensors if isinstance(one, Tensor))
        return function(*args, **(kwargs or {}))


class _Parallel(Method):
    """Two processes share a run; each has the same samples and initial parameters."""

    family = "parallelism"
    changes = frozenset({"processes"})
    processes = PROCESSES

    def change_model(self, training: Training) -> None:
        if not all(isinstance(encoder.query, nn.Linear) for encoder in training.model.encoders):
            raise MethodError(f"{self.name} is for the dense model")
        training.extra["sent"] = SentBytes()
        self.share(training, training.model)

    def share(self, training: Training, model: Transformer) -> None:
        """Replace `training.model` by this process's part of the model."""

    def make_optimizer(self, training: Training) -> torch.optim.Optimizer:
        # Fused kernels do not take a mixture of sharded and whole parameters.
        return torch.optim.AdamW(training.trained, lr=LEARNING_RATE, foreach=False, fused=False)

    def around_forward(self, training: Training) -> AbstractContextManager:
        return training.extra["sent"]

    around_backward = around_forward

    def finish(self, training: Training) -> dict[str, Any]:
        """Put the whole model together, and return what this process held and sent for each step."""
        local = [_local(parameter) for parameter in training.trained]
        states = [_local(one) for state in training.optimizer.state.values() for one in state.values()]
        facts = {
            "parameter_bytes": sum(one.nbytes for one in local),
            "gradient_bytes": sum(one.nbytes for one in local),  # one for each
            "optimizer_bytes": sum(one.nbytes for one in states if one.dim()),
            "sent_bytes_per_step": training.extra["sent"].count / (training.steps + 1),  # and that of the memory
        }
        whole = Transformer(training.setting.config)
        whole.load_state_dict(self.gather(training))
        training.model = whole
        return facts

    def gather(self, training: Training) -> dict[str, Tensor]:
        from torch.distributed.tensor import DTensor

        state = training.model.state_dict()
        return {
            name.removeprefix("module."): one.full_tensor() if isinstance(one, DTensor) else one
            for name, one in state.items()
        }


def _local(tensor: Any) -> Tensor:
    from torch.distributed.tensor import DTensor

    return tensor.to_local() if isinstance(tensor, DTensor) else torch.as_tensor(tensor)


class DataParallel(_Parallel):
    """Give each process half of a batch and the whole model; gradients are averaged."""

    name = "data-parallel"
    source = "Li et al. (PyTorch Distributed), arXiv 2006.15704; torch.nn.parallel.DistributedDataParallel"

    def share(self, training: Training, model: Transformer) -> None:
        training.model = DistributedDataParallel(model, gradient_as_bucket_view=True)

    def change_batch(self, training: Training, batch: Batch) -> Batch:
        """Return this process's part, weighted so that the average over processes is that of the batch."""
        count, rank = len(batch.samples), distributed.get_rank()
        own = np.arange(rank, count, PROCESSES)
        weight = PROCESSES * len(own) / count
        own = own if len(own) else np.zeros(1, int)  # a batch of one: a loss that does not count
        return Batch(batch.samples[own], np.full(len(own), weight, np.float32))


class Zero(DataParallel):
    """Share parameters, gradients and optimizer state among the processes; each gathers an encoder when it needs it."""

    name = "zero"
    source = "Rajbhandari et al. (ZeRO, stage 3), arXiv 1910.02054; Zhao et al., arXiv 2304.11277; fully_shard"
    offloads = False

    def share(self, training: Training, model: Transformer) -> None:
        from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

        mesh = init_device_mesh(training.device.type, (PROCESSES,))
        policy = CPUOffloadPolicy(pin_memory=False) if self.offloads else OffloadPolicy()
        # The logits are views of a product. PyTorch warns of what a change in place does: there is none.
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor", UserWarning)
        for part in (*model.encoders, model):
            fully_shard(part, mesh=mesh, offload_policy=policy)


class ZeroOffload(Zero):
    """ZeRO with shards and optimizer in the host's memory; on a CPU, whose memory is the host's, it is ZeRO."""

    name = "zero-offload"
    source = "Ren et al. (ZeRO-Offload), arXiv 2101.06840; CPUOffloadPolicy of fully_shard"
    offloads = True


class TensorParallel(_Parallel):
    """Share the heads and the inner width of each encoder among the processes."""

    name = "tensor-parallel"
    source = "Shoeybi et al. (Megatron-LM), arXiv 1909.08053, section 3; parallelize_module"

    def share(self, training: Training, model: Transformer) -> None:
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        # The first matrices by columns and the second by rows: two sums of activations for each encoder.
        if training.setting.config.heads % PROCESSES:
            raise MethodError(f"{self.name}: the number of heads must be a multiple of {PROCESSES}")
        mesh = init_device_mesh(training.device.type, (PROCESSES,))
        columns, rows = ("query", "key", "value", "first"), ("output", "second")
        for encoder in model.encoders:
            encoder.heads //= PROCESSES
            plan = {name: ColwiseParallel() for name in columns} | {name: RowwiseParallel() for name in rows}
            parallelize_module(encoder, mesh, plan)


class _Stage(nn.Module):
    """Half of the encoders, with the embedding before the first or the labels after the last."""

    def __init__(self, model: Transformer, rank: int):
        super().__init__()
        half = -(-len(model.encoders) // PROCESSES)
        part = slice(None, half) if rank == 0 else slice(half, None)
        self.encoders = nn.ModuleDict({str(i): one for i, one in list(enumerate(model.encoders))[part]})
        names = ("embedding",) if rank == 0 else ("intent_pooler", "slot_pooler", "intent_head", "slot_head")
        for name in names:
            setattr(self, name, getattr(model, name))
        self.first = rank == 0

    def forward(self, x: Tensor):
        """Map tokens (n, T) to activations (n, T, hidden), or these to logits."""
        x = self.embedding(x) if self.first else x
        for encoder in self.encoders.values():
            x = encoder(x)
        return x if self.first else Transformer.label(self, x)


class PipelineParallel(_Parallel):
    """Give each process half of the encoders; two micro-batches pass through them one after the other."""

    name = "pipeline-parallel"
    source = "Huang et al. (GPipe), arXiv 1811.06965; torch.distributed.pipelining"

    def share(self, training: Training, model: Transformer) -> None:
        if len(model.encoders) < PROCESSES:
            raise MethodError(f"{self.name} needs at least {PROCESSES} encoders")
        training.model = _Stage(model, distributed.get_rank())

    def losses(self, training: Training, batch: Batch) -> Tensor:
        """Run the schedule, forward and backward, and return the losses of the batch."""
        from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

        samples, rank = batch.samples, distributed.get_rank()
        length = int(samples.lengths[0])
        tokens, intents, slots = (
            torch.from_numpy(np.asarray(array, np.int64))
            for array in (samples.tokens[:, :length], samples.intents, samples.slots[:, 1:length])
        )
        found: list[Tensor] = []
        ignored = training.setting.config.ignore_index

        def mean_loss(logits: tuple[Tensor, Tensor], labels: Tensor) -> Tensor:
            found.append(sample_losses(*logits, labels[:, 0], labels[:, 1:], ignore_index=ignored))
            return found[-1].mean()

        stage = PipelineStage(training.model, rank, PROCESSES, training.device)
        parts = 2 - len(samples) % 2  # micro-batches, of equal size
        schedule = ScheduleGPipe(stage, parts, loss_fn=mean_loss)
        if rank == 0:
            schedule.step(tokens)
        else:
            schedule.step(target=torch.cat([intents[:, None], slots], 1))
        # The schedule also asks for the loss of a micro-batch when it finds the shapes: the last ones are the batch's.
        losses = torch.cat(found[-parts:]).detach() if found else torch.zeros(len(samples))
        distributed.broadcast(losses, PROCESSES - 1)
        return losses.requires_grad_()  # its backward pass is over

    def gather(self, training: Training) -> dict[str, Tensor]:
        parts: list[Any] = [None] * PROCESSES
        distributed.all_gather_object(parts, training.model.state_dict())
        return {name: one for part in parts for name, one in part.items()}
