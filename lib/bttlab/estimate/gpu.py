"""Model training on a GPU that is not here: modelled, with a band, never measured.

The kernels of a step are counted by running it once on the CPU: every operator that makes something new is a kernel or
a few, with its operations and bytes. Its arithmetic, its bytes and its launch overlap, with the shares of the published
peaks that `bttlab_cost.fitting` fitted to published runs. At batch 1 nearly all of them
wait for launches, so what a launch costs, with and without CUDA graphs, makes the band. Measured records take the place
of these figures wherever there are any.
"""

import json
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from bttlab.baseline.gpus import Gpu, overlapped
from bttlab.baseline.memory import measure_memory
from bttlab.baseline.run import variant
from bttlab.baseline.step import LossFunction, Task
from bttlab.data import Corpus, Samples, Vocabulary, encode
from bttlab.model import LEARNING_RATES, OPTIMIZERS, ModelConfig, ModuleConfig, batch_losses
from bttlab.util.places import ROOT

MODEL_VERSION = "gpu-4"
CALIBRATION = ROOT / "data" / "cost" / "gpu_model.json"
COUNTED = ROOT / "data" / "gpu_kernels.json"  # of the paper's smallest model, written by tools/gpu_kernels.py
# Seconds a kernel takes at least. Eager: the host's launch, as fitted to the runs that other projects published, and
# the least of the fits without one of them (docs/cost.md); the high end was measured beside an H100. In a CUDA graph:
# 3.4 µs were published for a kernel of 2.9 (NVIDIA's "Getting Started with CUDA Graphs", 2019); the middle and the high
# end are the median and the most of the H100's records at batch 1 (data/baselines).
LAUNCH = {"eager": (11.5e-6, None, 46e-6), "graphs": (3.4e-6, 6e-6, 8.5e-6)}
# Power with clocks up of a GPU that has no readings of it, as a share of the board's limit over idle: estimates.
AWAKE_POWER = (0.08, 0.15, 0.25)
# What kernels add, as a share of the rest up to the limit: a little while any runs (the H100's records at batch 1), and
# the share of the time in which arithmetic or memory works at its fitted rate. The band, a factor of two, is an
# engineering estimate.
RESIDENT = 0.02
KERNELS_POWER = (0.5, 1.0, 2.0)
# Bytes of context and kernels' code in a PyTorch process: engineering estimates, no record has them.
CONTEXT = (300e6, 450e6, 820e6)
SEGMENT = 2 * 2**20  # bytes that the caching allocator takes at a time, at least
WORKSPACE = 8 * 2**20  # bytes of cuBLAS's scratch, PyTorch's default for GPUs before Hopper, whose is 32 MiB
HOPPER_WORKSPACE = 32 * 2**20
FUSED_RULES = {
    "momentum": partial(torch.optim.SGD, lr=LEARNING_RATES["momentum"], momentum=0.9, fused=True),
    "adamw": partial(torch.optim.AdamW, fused=True),
}
# Kernels of an operator that is more than one on a GPU.
KERNELS = {
    "native_layer_norm_backward": 2,
    "embedding_dense_backward": 4,
    "_scaled_dot_product_flash_attention_for_cpu_backward": 3,
    "_foreach_add_": 3,
}


@dataclass(frozen=True)
class GpuKernel:
    """An operator of a step."""

    launches: int
    # flops, moved: operations of matrix products, and bytes read and written
    flops: float
    moved: float


@dataclass(frozen=True)
class Modelled:
    """A training step on a GPU; each figure low, middle and high."""

    gpu: str
    format: str
    mode: str
    model: ModelConfig | ModuleConfig
    tokens: int
    kernels: int
    # seconds, watts, joules: of a step; of the board while it runs; of a step
    seconds: tuple[float, float, float]
    watts: tuple[float, float, float]
    joules: tuple[float, float, float]
    process_bytes: tuple[float, float, float]  # what the process holds: context, workspace, tensors in whole segments
    tensor_bytes: float  # the most that tensors hold, counted


class _Counter(TorchDispatchMode):
    """While entered, notes the operators that make or change tensors."""

    def __init__(self):
        super().__init__()
        self.kernels: list[GpuKernel] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:  # as of `bttlab.baseline.memory.StorageMeter`
        return False

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        if not function.is_view and name not in ("_unsafe_view", "detach"):
            tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, Tensor)]
            count = flop_registry.get(function.overloadpacket)
            flops = count(*args, **(kwargs or {}), out_val=result) if count else 0
            self.kernels.append(GpuKernel(KERNELS.get(name, 1), float(flops), float(sum(t.nbytes for t in tensors))))
        return result


def count_kernels(task: Task) -> list[GpuKernel]:
    """Return the kernels of a training step on a task's first sample."""
    task.step(0, task.loss)  # what only a first step does is no part of any other
    with _Counter() as counter:
        task.step(0, task.loss)
    return counter.kernels


@cache
def _fitted() -> dict[str, float]:
    """Return the fitted shares of the published peaks, "arithmetic" and "bandwidth", and seconds of a "launch"."""
    return json.loads(CALIBRATION.read_text(encoding="utf-8"))["time"]


def typical_sample(corpus: Corpus, config: ModelConfig | ModuleConfig) -> Samples:
    """Return a training sample whose length is nearest to the mean of its corpus."""
    vocabulary = Vocabulary.from_sentences(corpus.train.words, config.vocabulary_size)
    samples = encode(corpus.train, vocabulary, corpus, config)
    nearest = int(np.argmin(np.abs(samples.lengths - samples.lengths.mean())))
    return samples[nearest : nearest + 1]


def model_step(
    gpu: Gpu, format: str, mode: str, config: ModelConfig | ModuleConfig, sample: Samples, optimizer: str = "sgd"
) -> Modelled:
    """Model a training step on one sample, whose length counts.

    The format is "dense", "tt", "btt" or "module", and that of `config` plays no part; the mode is "eager" or "graphs",
    the optimizer one of `bttlab.model.OPTIMIZERS`.
    """
    kernels, tensor_bytes = known_kernels(format, config, sample, optimizer)
    seconds, watts = _time_and_power(kernels, gpu, mode)
    workspace = HOPPER_WORKSPACE if gpu.gpu.startswith(("H100", "H200")) else WORKSPACE
    held = workspace + SEGMENT * -(-tensor_bytes // SEGMENT)
    return Modelled(
        gpu.gpu,
        format,
        mode,
        config,
        int(sample.lengths[0]),
        sum(kernel.launches for kernel in kernels),
        seconds,
        watts,
        tuple(time * power for time, power in zip(seconds, watts, strict=True)),
        tuple(context + held for context in CONTEXT),
        tensor_bytes,
    )


def _time_and_power(
    kernels: list[GpuKernel], gpu: Gpu, mode: str
) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """Seconds of a step, and watts of the board while it runs; low, middle and high."""
    floors = [_fitted()["launch"] if floor is None else floor for floor in LAUNCH[mode]]
    seconds = tuple(sum(_seconds(kernel, floor, gpu) for kernel in kernels) for floor in floors)
    # The device itself is busy as long as in a graph, however kernels are launched.
    running = sum(_seconds(kernel, LAUNCH["graphs"][1], gpu) for kernel in kernels)
    working = sum(max(_works(kernel, gpu)) for kernel in kernels)
    share = RESIDENT * min(1.0, running / seconds[1]) + working / seconds[1]
    over = gpu.board_w - gpu.idle_w
    awake = gpu.awake_w or [gpu.idle_w + part * over for part in AWAKE_POWER]
    powers = zip(awake, KERNELS_POWER, strict=True)
    return seconds, tuple(watts + min(1.0, factor * share) * (gpu.board_w - watts) for watts, factor in powers)


class RuleTask(Task):
    """Training by one of `bttlab.model.OPTIMIZERS`, with torch.optim's fused kernels for those with moments."""

    def __init__(self, config: ModelConfig | ModuleConfig, flow: str, samples: Samples, optimizer: str):
        super().__init__(config, flow, samples, LEARNING_RATES["sgd"], 0, "cpu")
        rule = FUSED_RULES.get(optimizer)
        self._rule = rule(self.parameters) if rule else None

    def update(self, gradients: tuple[Tensor, ...]) -> None:
        if self._rule is None:
            return super().update(gradients)
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        self._rule.step()


class BatchTask(RuleTask):
    """Training on all samples, of equal length, as one batch in one step."""

    def __init__(self, config: ModelConfig, flow: str, samples: Samples, optimizer: str):
        super().__init__(config, flow, samples, optimizer)
        self._batch = samples

    def step(self, index: int, function: LossFunction) -> None:
        self.update(self.gradients(batch_losses(self.model, self._batch).mean()))


def batch_figures(
    gpu: Gpu, format: str, mode: str, config: ModelConfig, samples: Samples, optimizer: str = "sgd"
) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """Model seconds and joules of a sample, low, middle and high, of training on samples of equal length in one step.

    Other parameters are those of `model_step`, and of `BatchTask`.
    """
    config, flow = variant(config, format)
    task = BatchTask(config, flow or "bidirectional", samples, optimizer)
    with torch.random.fork_rng(devices=[]):
        seconds, watts = _time_and_power(count_kernels(task), gpu, mode)
    times = tuple(time / len(samples) for time in seconds)
    return times, tuple(time * power for time, power in zip(times, watts, strict=True))


def _works(kernel: GpuKernel, gpu: Gpu) -> tuple[float, float]:
    """Return the seconds of a kernel's arithmetic and of its memory, at the fitted shares of the peaks."""
    arithmetic = kernel.flops / (_fitted()["arithmetic"] * gpu.peak("fp32"))
    return arithmetic, kernel.moved / (_fitted()["bandwidth"] * 1e9 * gpu.bandwidth_gb_s)


def _seconds(kernel: GpuKernel, floor: float, gpu: Gpu) -> float:
    """Return the seconds of a kernel, of whose launches each takes at least `floor`."""
    return float(overlapped(*_works(kernel, gpu), kernel.launches * floor))


@cache
def _recorded() -> dict[tuple[str, int], tuple[list[GpuKernel], float]]:
    """Return the recorded kernels and peak bytes of the paper's smallest model, by format and tokens."""
    steps = json.loads(COUNTED.read_text(encoding="utf-8"))["steps"]
    return {
        (one["format"], one["tokens"]): ([GpuKernel(*row) for row in one["kernels"]], one["bytes"]) for one in steps
    }


_counted: dict[tuple, tuple[list[GpuKernel], float]] = {}


def known_kernels(
    format: str, config: ModelConfig | ModuleConfig, sample: Samples, optimizer: str = "sgd"
) -> tuple[list[GpuKernel], float]:
    """Return the kernels and peak bytes of a step, recorded or counted once; they do not depend on the GPU."""
    config, _ = variant(config, format)
    tokens = int(sample.lengths[0])
    is_default = isinstance(config, ModelConfig) and config == ModelConfig(format=config.format)
    if is_default and optimizer == "sgd" and (format, tokens) in _recorded():
        return _recorded()[format, tokens]
    # A module counts as itself: a class of a notebook that was edited has the name and sizes that it had.
    identity = config if isinstance(config, ModuleConfig) else json.dumps(config.to_dict(), sort_keys=True)
    key = (format, identity, tokens, optimizer)
    if key not in _counted:
        _counted[key] = kernels_and_bytes(format, config, sample, optimizer)
    return _counted[key]


def kernels_and_bytes(
    format: str, config: ModelConfig | ModuleConfig, sample: Samples, optimizer: str = "sgd"
) -> tuple[list[GpuKernel], float]:
    """Count the kernels and peak bytes of a step; moments are there all the time, beside what SGD needs."""
    config, flow = variant(config, format)
    task = RuleTask(config, flow or "bidirectional", sample, optimizer)
    with torch.random.fork_rng(devices=[]):
        if optimizer == "sgd":
            return count_kernels(task), measure_memory(task).peak.value
        moments = len(OPTIMIZERS[optimizer].moments) * sum(parameter.nbytes for parameter in task.parameters)
        return count_kernels(task), known_kernels(format, config, sample)[1] + moments
