"""Measure the memory of a method's training step by category, from the storages of its tensors."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bttlab.baseline.memory import COUNTED, StorageMeter, replay
from bttlab.model import equal_length_batches
from bttlab.quantities import measured
from bttlab_methods.training import Batch, Training

ALLOCATOR = "most that torch.cuda's allocator held in the step"


def measure_memory(training: Training) -> dict[str, Any]:
    """Train one step on the batch with the most tokens, at a learning rate of 0, and count.

    Parameters
    ----------
    training : Training
        Has trained before, so that its optimizer has its state. Its parameters stay as they are.

    Returns
    -------
    dict
        "peak", a measured figure in bytes, "categories", of the same kind, when all together were the most:
        parameters (buffers included), gradients, optimizer_state (with what methods keep), activations (what the
        forward pass leaves for the backward pass), inputs, temporaries; "most", the same categories, each when it was
        the most; and "tokens", the batch's. On a GPU also "allocated".
    """
    batch = _largest(training)
    on_gpu = training.device.type == "cuda"
    training.model.train()
    training.optimizer.zero_grad(set_to_none=True)
    for group in training.optimizer.param_groups:
        group["lr"] = 0.0 * group["lr"]
    meter = StorageMeter()
    kinds: dict[int, str] = {}
    for category, tensors in _kept(training).items():
        for tensor in tensors:
            kinds.setdefault(meter.number(tensor), category)
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    with meter:
        value, _ = training.forward(batch)
        after_forward = _alive(meter.events)
        training.backward(value)
        of_gradients = {
            meter.number(part) for p in training.model.parameters() if p.grad is not None for part in flat(p.grad)
        }
        training.update()
    kinds = dict.fromkeys(after_forward, "activations") | dict.fromkeys(of_gradients, "gradients") | kinds
    most, at_peak = replay(meter.events, kinds)
    memory = {
        "tokens": int(batch.samples.lengths.sum()),
        "peak": measured(sum(at_peak.values()), "bytes", COUNTED),
        "categories": {name: measured(count, "bytes", COUNTED) for name, count in at_peak.items()},
        "most": {name: measured(count, "bytes", COUNTED) for name, count in most.items()},
    }
    if on_gpu:
        memory["allocated"] = measured(torch.cuda.max_memory_allocated(), "bytes", ALLOCATOR)
    training.optimizer.zero_grad(set_to_none=True)
    return memory


def flat(values: Any) -> Iterator[Tensor]:
    """Yield the plain tensors in nested containers, and those that tensors of other kinds are made of."""
    if isinstance(values, Tensor):
        if hasattr(values, "__tensor_flatten__"):
            for name in values.__tensor_flatten__()[0]:
                yield from flat(getattr(values, name))
        else:
            yield values
    elif isinstance(values, dict):
        yield from flat(list(values.values()))
    elif isinstance(values, list | tuple | set):
        for value in values:
            yield from flat(value)


def _kept(training: Training) -> dict[str, Iterable[Tensor]]:
    """Return the tensors that stay from step to step, by category."""
    return {
        "parameters": flat([*training.model.parameters(), *training.model.buffers()]),
        "optimizer_state": flat([dict(training.optimizer.state), training.extra]),
    }


def _alive(events: list[tuple[int, int]]) -> set[int]:
    alive: set[int] = set()
    for number, size in events:
        (alive.discard if size < 0 else alive.add)(number)
    return alive


def _largest(training: Training) -> Batch:
    samples, size = training.samples, training.setting.batch
    batches = equal_length_batches(np.arange(len(samples)), samples.lengths, size, np.random.default_rng(0))
    indices = max(batches, key=lambda batch: len(batch) * int(samples.lengths[batch[0]]))
    return Batch(samples[indices], indices=indices)
