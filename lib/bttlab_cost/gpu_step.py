"""Time of a training step on a GPU: counted operators, published facts of the GPU, a few fitted numbers.

Each operator has three times: its arithmetic at the peak of its precision, its bytes at the bandwidth of the memory,
and its launches by the host. They overlap (`bttlab.baseline.gpus.overlapped`).
A step is the sum of its operators. Fitted are the shares of peak and bandwidth that kernels reach, the cost of a launch
in eager PyTorch, the passes of elementwise work over its tensors, and the spread of the lengths.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bttlab.baseline.gpus import Gpu, overlapped
from bttlab_cost.configuration import FineTuning
from bttlab_cost.operators import Operator, operators

STAGES = ("forward", "backward", "optimizer")
Parts = dict[tuple[str, str, str], float]


@dataclass(frozen=True)
class Coefficients:
    """The fitted numbers of the time of a step."""

    # arithmetic, bandwidth: share of the published peaks that large kernels reach
    arithmetic: float
    bandwidth: float
    launch: float  # seconds that the host takes for a kernel
    wrapper: float  # seconds that the host takes for the forward call of a quantised layer beside its kernels
    passes: float  # how often elementwise work passes over the tensors that it is counted by
    tail: float  # mean excess of the lengths of a data set over their shortest, tokens
    # by how much a larger peak is reached less: the share is `arithmetic` at an A100's peak, and falls with the peak to
    # this power
    falloff: float


A100_TFLOPS = 312.0  # the peak at which `arithmetic` holds


def operator_seconds(operator: Operator, gpu: Gpu, precision: str, fitted: Coefficients) -> float:
    """Return the seconds of an operator, all its times together."""
    relative = gpu.bf16_tflops / A100_TFLOPS
    return float(_seconds(operator, gpu.peak(precision), relative, 1e9 * gpu.bandwidth_gb_s, fitted))


def _seconds(operator: Operator, peak, relative, bandwidth, fitted: Coefficients):
    # `relative` is the GPU's peak over the A100's.
    arithmetic = operator.flops / (fitted.arithmetic * peak) * relative**fitted.falloff
    memory = (operator.traffic + fitted.passes * operator.elementwise) / (fitted.bandwidth * bandwidth)
    host = operator.kernels * fitted.launch + operator.wrapped * fitted.wrapper
    return operator.times * overlapped(arithmetic, memory, host)


def parts_of(counted: Iterable[Operator], gpu: Gpu, precision: str, fitted: Coefficients) -> Parts:
    """Return the seconds of operators by stage, kind of work and layer."""
    parts: Parts = {}
    for operator in counted:
        key = (operator.stage, operator.kind, operator.layer)
        parts[key] = parts.get(key, 0.0) + operator_seconds(operator, gpu, precision, fitted)
    return parts


def step_parts(config: FineTuning, gpu: Gpu, batch: int, fitted: Coefficients) -> Parts:
    tokens = batch * config.padded_length(batch, fitted.tail)
    return parts_of(operators(config, tokens), gpu, config.precision, fitted)


def step_seconds(config: FineTuning, gpu: Gpu, batch: int, fitted: Coefficients) -> float:
    return sum(step_parts(config, gpu, batch, fitted).values())


def host_share(config: FineTuning, gpu: Gpu, batch: int, fitted: Coefficients) -> float:
    """Return the share of a step for which the GPU waits for its host: what a host without cost would save."""
    free = step_seconds(config, gpu, batch, replace(fitted, launch=0.0, wrapper=0.0))
    return 1 - free / step_seconds(config, gpu, batch, fitted)


def stages_of_steps(
    config: FineTuning, gpus: Sequence[Gpu], batches: Sequence[int], fitted: Coefficients
) -> dict[str, np.ndarray]:
    """Return the seconds of each stage of several steps for n values of each coefficient, (n, 1); shape (n, steps).

    They are analytic functions of the coefficients, which may be complex: `bttlab_cost.fitting` takes its derivatives
    so.
    """
    tokens = np.concatenate([batch * config.padded_length(batch, fitted.tail) for batch in batches], axis=1)
    peak = np.array([gpu.peak(config.precision) for gpu in gpus])
    relative = np.array([gpu.bf16_tflops / A100_TFLOPS for gpu in gpus])
    bandwidth = 1e9 * np.array([gpu.bandwidth_gb_s for gpu in gpus])
    counted = operators(config, tokens)
    fields = ("times", "flops", "traffic", "elementwise", "kernels", "wrapped")
    table = np.empty((len(fields), len(counted), *tokens.shape), tokens.dtype)  # one operator with arrays: it is faster
    for place, operator in enumerate(counted):
        for row, name in zip(table, fields, strict=True):
            row[place] = getattr(operator, name)
    seconds = _seconds(Operator("", "", "", *table), peak, relative, bandwidth, fitted)
    stage_of = np.array([operator.stage for operator in counted])
    return {stage: seconds[stage_of == stage].sum(axis=0) for stage in STAGES}
