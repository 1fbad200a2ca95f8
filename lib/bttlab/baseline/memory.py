"""Memory of a training step by category: counted storages on any device, the allocator's statistics on a GPU."""

import weakref
from collections import Counter

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bttlab.baseline.record import Memory, Share, Stage
from bttlab.baseline.step import Task
from bttlab.util.quantities import Quantity

CATEGORIES = ("parameters", "gradients", "optimizer_state", "activations", "inputs", "temporaries")
COUNTED = "counted storages of an eager step's tensors; scratch inside kernels is not seen"
ALLOCATOR = "torch.cuda memory statistics of the process"
NO_STATISTICS = "PyTorch's CPU allocator keeps no statistics"


class StorageMeter(TorchDispatchMode):
    """While entered, notes when storages of tensors come and go.

    An event is a storage's number and its bytes, negative when it goes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.events: list[tuple[int, int]] = []
        self._numbers: dict[int, int] = {}  # address of a live storage -> its number; addresses are used again
        self._sizes: dict[int, int] = {}  # a live storage's number -> its bytes
        self._count = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:  # PyTorch asks: if so, it imports its compiler, which takes seconds
        return False

    def number(self, tensor: Tensor) -> int:
        """Return the number of a tensor's storage, a new one if it is not known yet."""
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address not in self._numbers:
            self._numbers[address] = self._count
            self._sizes[self._count] = storage.nbytes()
            self.events.append((self._count, storage.nbytes()))
            weakref.finalize(storage, self._gone, address).atexit = False
            self._count += 1
        return self._numbers[address]

    def _gone(self, address: int) -> None:
        number = self._numbers.pop(address)
        self.events.append((number, -self._sizes.pop(number)))

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.number(leaf)
        return result


def counted_step(task: Task) -> tuple[dict[str, int], dict[str, int]]:
    """Train on a task's first sample and count the bytes of each category.

    The result has the most bytes at any time, and the bytes when all together were the most. The task has no optimizer
    state: SGD keeps none.
    """
    meter = StorageMeter()
    saved: set[int] = set()

    def pack(tensor: Tensor) -> Tensor:
        saved.add(meter.number(tensor))
        return tensor.detach()  # the tensor itself would keep its own graph alive

    parameters = {meter.number(parameter) for parameter in task.parameters}
    inputs = {meter.number(tensor) for tensor in (task.rows, task.losses, task.cursor)}
    with meter:
        with saved_tensors_hooks(pack, lambda tensor: tensor):
            value = task.loss(*task.sample(task.rows[0], task.lengths[0]))
        gradients = task.gradients(value)
        of_gradients = {meter.number(gradient) for gradient in gradients}
        task.update(gradients)
    kinds = dict.fromkeys(saved, "activations")
    kinds |= dict.fromkeys(of_gradients, "gradients")
    kinds |= dict.fromkeys(parameters, "parameters") | dict.fromkeys(inputs, "inputs")
    return replay(meter.events, kinds)


def replay(events: list[tuple[int, int]], kinds: dict[int, str]) -> tuple[dict[str, int], dict[str, int]]:
    """Return the bytes of each category over a `StorageMeter`'s events, as `counted_step` does.

    `kinds` has the category of each storage; storages that are not in it are "temporaries".
    """
    held: Counter = Counter(dict.fromkeys(CATEGORIES, 0))
    most, at_peak, peak = dict(held), dict(held), 0
    for number, size in events:
        kind = kinds.get(number, "temporaries")
        held[kind] += size
        most[kind] = max(most[kind], held[kind])
        if held.total() > peak:
            at_peak, peak = dict(held), held.total()
    return most, at_peak


def stage_statistics(task: Task) -> dict[str, tuple[int, int]]:
    """Train on a task's first sample and read the allocator between the stages.

    The result has the bytes held at the end of "forward", "backward" and "update", and the peak of each. The task has
    trained before, so that what is set up at first use is there.
    """
    read: dict[str, tuple[int, int]] = {}

    def end(stage: str) -> None:
        torch.cuda.synchronize()
        read[stage] = (torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated())
        torch.cuda.reset_peak_memory_stats()

    torch.cuda.reset_peak_memory_stats()
    value = task.loss(*task.sample(task.rows[0], task.lengths[0]))
    end("forward")
    gradients = task.gradients(value)
    end("backward")
    task.update(gradients)
    end("update")
    return read


def measure_memory(task: Task) -> Memory:
    """Measure an eager step on a task's first sample; the task has been trained on then."""
    task.step(0, task.loss)
    stages = stage_statistics(task) if task.device.type == "cuda" else {}
    most, at_peak = counted_step(task)
    peak = sum(at_peak.values())
    if stages:
        beyond = max(peak_bytes for _, peak_bytes in stages.values()) - peak
        workspace = Quantity.measured(beyond, "bytes", f"peak by {ALLOCATOR} less the peak of counted storages")
    else:
        workspace = Quantity.missing("bytes", NO_STATISTICS)
    return Memory(
        tokens=task.lengths[0],
        categories={name: Share(_counted(most[name]), _counted(at_peak[name])) for name in CATEGORIES},
        peak=_counted(peak),
        stages={name: Stage(_allocated(kept), _allocated(most_held)) for name, (kept, most_held) in stages.items()},
        workspace=workspace,
    )


def _counted(value: int) -> Quantity:
    return Quantity.measured(value, "bytes", COUNTED)


def _allocated(value: int) -> Quantity:
    return Quantity.measured(value, "bytes", ALLOCATOR)


def device_memory(device: torch.device) -> tuple[Quantity, Quantity, Quantity]:
    """Return the most allocated and reserved since the statistics were reset, and what the device holds now."""
    if device.type != "cuda":
        return (Quantity.missing("bytes", NO_STATISTICS),) * 3
    free, total = torch.cuda.mem_get_info()
    return (
        _allocated(torch.cuda.max_memory_allocated()),
        _allocated(torch.cuda.max_memory_reserved()),
        Quantity.measured(total - free, "bytes", "CUDA's free memory, everything on the device included"),
    )
