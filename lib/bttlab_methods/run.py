"""Running a combination of methods: train, measure, score."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from threading import Event
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed
from torch.utils._pytree import tree_leaves

from bttlab.baseline.energy import EnergyWindow, find_meter
from bttlab.baseline.machine import load_average
from bttlab.baseline.memory import COUNTED, StorageMeter, replay
from bttlab.data import encode
from bttlab.data.metrics import score
from bttlab.model import equal_length_batches, predict_in_batches
from bttlab.runs.record import versions
from bttlab.util.quantities import measured
from bttlab_methods.method import Method
from bttlab_methods.processes import in_processes
from bttlab_methods.setting import SCORED_AT_ONCE, MethodError, Setting
from bttlab_methods.training import Batch, OnBatch, Training, check_combination, combination_name

ALLOCATOR = "most that torch.cuda's allocator held in the step"


@dataclass(frozen=True)
class Result:
    """Result of a run with some methods.

    `methods` is the combination as `bttlab_methods.parse` takes it, `trained` the number of parameters that were
    trained, and `model` has the fields of the model's configuration that are not the paper's.
    """

    methods: str
    corpus: str
    encoders: int
    samples: int
    batch: int
    seed: int
    device: str
    parameters: int
    trained: int
    losses: list[float]  # mean loss of each batch, before its update
    scores: dict[str, dict[str, Any]]  # by split, the fields of `bttlab.data.metrics.Scores`; measured
    memory: dict[str, Any]  # as `measure_memory` returns it
    # seconds_per_epoch, joules_per_epoch: quantities; the value is null where nothing meters the energy
    seconds_per_epoch: dict[str, Any]
    joules_per_epoch: dict[str, Any]
    facts: dict[str, Any] = field(default_factory=dict)  # what the methods report
    load: list[float] | None = None  # the machine's load averages (1, 5, 15 minutes) when it ended
    versions: dict[str, str] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    corpus_sha256: str = ""  # as `bttlab.runs.settings.corpus_digest` returns it; empty in older records
    rate_factor: float = 1.0  # of `Setting`, and so is `warmup`
    warmup: float = 0.1


def run_methods(
    setting: Setting,
    methods: Sequence[Method],
    on_batch: OnBatch | None = None,
    stop: Event | None = None,
    splits: Sequence[str] = ("dev", "test"),
    on_training: Callable[[Training], None] | None = None,
) -> Result:
    """Train with a combination of methods, measure its time, energy and memory, and score it.

    Without methods it is dense training with AdamW. `on_batch` and `stop` are as for `Training.run`; `on_training` gets
    the run before its first step. Raises MethodError if the methods do not combine, one does not run here, or a loss is
    not finite.
    """
    processes = max([one.processes for one in methods], default=1)
    if processes > 1 and not distributed.is_initialized():
        check_combination(methods)
        results = in_processes(processes, run_methods, (setting, tuple(methods), None, None, tuple(splits)), stop)
        losses = np.mean([one["losses"] for one in results], axis=0).tolist()  # of parts of equal size, or of all
        return Result(**results[0] | {"losses": losses, "facts": {"processes": [one["facts"] for one in results]}})
    training = Training(setting, methods)
    if on_training is not None:
        on_training(training)
    losses: list[float] = []

    def noted(batch) -> None:
        losses.append(float(batch.mean()))
        if on_batch is not None:
            on_batch(batch)

    meter, reason = find_meter(training.device)
    window = None if meter is None else EnergyWindow(meter)
    if window is not None:
        training.aside = window.aside
    with window or nullcontext():
        training.run(noted, stop)
    if not training.count:
        raise MethodError("stopped before the first step: there is nothing to tell; train again")
    epochs = training.count / len(training.samples)
    energy = {"value": None, "unit": "J", "provenance": None, "how": reason}
    if window is not None:
        how = f"{meter.how}, idle power included"
        energy = window.quantity(lambda joules: joules / epochs, "J", how).to_dict()
    memory = measure_memory(training)
    facts = training.finish()
    return Result(
        methods=combination_name(methods),
        corpus=setting.corpus.name,
        encoders=setting.config.encoders,
        samples=training.count,
        batch=setting.batch,
        seed=setting.seed,
        device=setting.device,
        parameters=sum(parameter.numel() for parameter in training.model.parameters()),
        trained=sum(parameter.numel() for parameter in training.trained),
        losses=losses,
        scores={split: score_split(training, split) for split in splits},
        memory=memory,
        seconds_per_epoch=measured(training.seconds_spent / epochs, "s", training.clock),
        joules_per_epoch=energy,
        facts=facts,
        load=load_average(),
        versions=versions(),
        model=setting.own_sizes,
        corpus_sha256=setting.corpus_sha256,
        rate_factor=setting.rate_factor,
        warmup=setting.warmup,
    )


def score_split(training: Training, split: str) -> dict[str, Any]:
    corpus, config = training.setting.corpus, training.setting.config
    samples = encode(corpus.split(split), training.vocabulary, corpus, config)
    return asdict(score(corpus, corpus.split(split), predict_in_batches(training.model, samples, SCORED_AT_ONCE)))


def measure_memory(training: Training) -> dict[str, Any]:
    """Train one step on the batch with the most tokens, at a learning rate of 0, and count.

    The training has trained before, so that its optimizer has its state; its parameters stay as they are. The result
    has "peak", in bytes; "categories" at the peak: parameters (with buffers), gradients, optimizer_state (with what
    methods keep), activations (what the forward pass leaves for the backward pass), inputs, temporaries; "most", each
    category at its own maximum; "tokens", the batch's. On a GPU also "allocated".
    """
    samples = training.samples
    batches = equal_length_batches(
        np.arange(len(samples)), samples.lengths, training.setting.batch, np.random.default_rng(0)
    )
    indices = max(batches, key=lambda batch: len(batch) * int(samples.lengths[batch[0]]))
    batch = Batch(samples[indices])
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
        gathered = {meter.number(part) for part in flat(list(training.model.parameters()))}  # by ZeRO: temporaries
        after_forward = meter.alive() - gathered
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
