"""Memory of a training step by category: counted storages on any device, the allocator's statistics on a GPU."""

import weakref
from collections import Counter
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bttlab.baseline.record import Memory, Share
from bttlab.baseline.step import Task
from bttlab.util.quantities import Quantity

CATEGORIES = ("parameters", "gradients", "optimizer_state", "activations", "inputs", "temporaries")
COUNTED = "counted storages of an eager step's tensors; scratch inside kernels is not seen"


class StorageMeter(TorchDispatchMode):
    """While entered, notes when storages of tensors come, go or change their size.

    An event is a storage's number and the bytes that it gains, negative when it shrinks or goes. A storage that lives
    on without bytes counts as gone: `fully_shard` frees gathered parameters by `storage.resize_(0)`. No operation tells
    of that, so that the sizes are read again before each one, and at the end.
    """

    def __init__(self) -> None:
        super().__init__()
        self.events: list[tuple[int, int]] = []
        self._numbers: dict[int, int] = {}  # address of a live storage -> its number; addresses are used again
        self._sizes: dict[int, int] = {}  # a live storage's number -> its bytes
        self._storages: dict[int, weakref.ref[torch.UntypedStorage]] = {}  # a live storage's number -> it
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
            self._sizes[self._count] = 0
            self._storages[self._count] = weakref.ref(storage)
            weakref.finalize(storage, self._gone, address).atexit = False
            self._count += 1
        number, size = self._numbers[address], storage.nbytes()
        self._note(number, size - self._sizes[number])
        self._sizes[number] = size
        return number

    def alive(self) -> set[int]:
        """Return the numbers of the storages that have bytes now."""
        self._read_sizes()
        return {number for number, size in self._sizes.items() if size}

    def _gone(self, address: int) -> None:
        number = self._numbers.pop(address)
        del self._storages[number]
        self._note(number, -self._sizes.pop(number))

    def _note(self, number: int, gained: int) -> None:
        if gained:
            self.events.append((number, gained))

    def _read_sizes(self) -> None:
        there = [(number, reference()) for number, reference in self._storages.copy().items()]
        found = [(storage.nbytes() - self._sizes[number], number) for number, storage in there if storage is not None]
        for gained, number in sorted(found):  # what shrank first: memory is freed before it is taken again
            self._sizes[number] += gained
            self._note(number, gained)

    def __exit__(self, *failure) -> None:
        self._read_sizes()
        super().__exit__(*failure)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        # Tensors that are made of others, such as shards, have no bytes themselves: PyTorch asks them what they do, and
        # then this meter for each operation on the parts.
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented
        self._read_sizes()
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
    return replay(*step_events(task))


def step_timeline(task: Task) -> dict[str, np.ndarray]:
    """Train on a task's first sample; returns the bytes of each category after each event, int64.

    An event is a storage that comes or goes; what came before the step is there from the first event on.
    """
    events, kinds = step_events(task)
    before = [event for event in events if event[0] in kinds and kinds[event[0]] in ("parameters", "inputs")]
    ordered = [*before, *(event for event in events if event not in set(before))]
    names = np.array([CATEGORIES.index(kinds.get(number, "temporaries")) for number, _ in ordered])
    sizes = np.array([size for _, size in ordered])
    totals = {name: np.cumsum(np.where(names == k, sizes, 0)) for k, name in enumerate(CATEGORIES)}
    return {name: total[max(len(before) - 1, 0) :] for name, total in totals.items() if total.any()}


def step_events(task: Task) -> tuple[list[tuple[int, int]], dict[int, str]]:
    """Train on a task's first sample; returns the events of a `StorageMeter`, and the category of each storage."""
    meter = StorageMeter()
    saved: set[int] = set()

    def pack(tensor: Tensor) -> Tensor:
        saved.add(meter.number(tensor))
        return tensor.detach()  # the tensor itself would keep its own graph alive

    parameters = {meter.number(parameter) for parameter in task.model.parameters()}
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
    return meter.events, kinds


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


def measure_memory(task: Task) -> Memory:
    """Measure an eager step on a task's first sample; the task has been trained on then."""
    task.step(0, task.loss)
    most, at_peak = counted_step(task)
    counted = partial(Quantity.measured, unit="bytes", how=COUNTED)
    categories = {name: Share(counted(most[name]), counted(at_peak[name])) for name in CATEGORIES}
    return Memory(task.lengths[0], categories, counted(sum(at_peak.values())))


def device_memory(device: torch.device) -> tuple[Quantity, Quantity]:
    """Return the most bytes allocated and reserved since the statistics were reset."""
    if device.type != "cuda":
        return (Quantity.missing("bytes", "PyTorch's CPU allocator keeps no statistics"),) * 2
    most = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    return tuple(Quantity.measured(value, "bytes", "torch.cuda memory statistics of the process") for value in most)
