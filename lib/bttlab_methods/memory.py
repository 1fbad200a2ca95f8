"""Measure the memory of a method's training step by category, from the storages of its tensors."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

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
    for tensor in flat([*training.model.parameters(), *training.model.buffers()]):
        kinds[meter.number(tensor)] = "parameters"
    for tensor in flat([dict(training.optimizer.state), training.extra]):
        kinds.setdefault(meter.number(tensor), "optimizer_state")
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    with meter:
        value, _ = training.forward(batch)
        after_forward = _alive(meter.events)
        training.backward(value)
        of_gradients = {meter.number(part) for part in flat([p.grad for p in training.model.parameters()])}
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
    for leaf in tree_leaves(values):
        if hasattr(leaf, "__tensor_flatten__"):
            yield from flat([getattr(leaf, name) for name in leaf.__tensor_flatten__()[0]])
        elif isinstance(leaf, Tensor):
            yield leaf


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
