"""Time and memory of a training step on a GPU: counted operators, published facts of the GPU, a few fitted numbers.

Each operator takes the longest of three: its arithmetic at the peak of its precision, its bytes at the bandwidth of the
memory, and its launches by the host; a step is their sum. What is fitted is how much of peak and bandwidth real kernels
reach, what a launch costs in eager PyTorch, how often elementwise work passes over its tensors, and how far
lengths spread.
"""

from dataclasses import dataclass

from bttlab.baseline.gpus import Gpu
from bttlab.baseline.roofline import Reach, longest_seconds
from bttlab.cost.configuration import FineTuning
from bttlab.cost.lengths import padded_length
from bttlab.cost.operators import Operator, operators

STAGES = ("forward", "backward", "optimizer")


@dataclass(frozen=True)
class Coefficients:
    """The fitted numbers of the time of a step.

    Attributes
    ----------
    arithmetic, bandwidth : float
        Share of the published peaks that large kernels reach.
    launch : float
        Seconds that the host takes for a kernel.
    wrapper : float
        Seconds that the host takes for the forward call of a quantised layer beside its kernels.
    passes : float
        How often elementwise work passes over the tensors that it is counted by.
    tail : float
        Mean excess of the lengths of a data set over their shortest, tokens.
    """

    arithmetic: float
    bandwidth: float
    launch: float
    wrapper: float
    passes: float
    tail: float


@dataclass(frozen=True)
class MemoryCoefficients:
    """The fitted numbers of the memory of a step.

    Attributes
    ----------
    kept : float
        Multiple of the activations that are counted, where all of them are kept for the way back.
    recomputed : float
        The same for the one block that checkpointing computes again.
    """

    kept: float
    recomputed: float


RESERVED = 2**30  # bytes that context and libraries take before the first tensor; an assumption
LOGIT_BYTES = 8  # of a logit beside the one that the model computes: its copy in FP32 and the copy's gradient
MIXER_VALUES = {"attention": 6, "mamba": 10}  # hidden vectors that a mixer keeps of a token


def operator_seconds(operator: Operator, gpu: Gpu, precision: str, fitted: Coefficients) -> float:
    """Return what an operator takes, all its times together."""
    reach = Reach(fitted.arithmetic, fitted.bandwidth)
    moved = operator.traffic + fitted.passes * operator.elementwise
    host = operator.kernels * fitted.launch + operator.wrapped * fitted.wrapper
    return operator.times * longest_seconds(operator.flops, moved, host, gpu, precision, reach)


def step_parts(config: FineTuning, gpu: Gpu, batch: int, fitted: Coefficients) -> dict[tuple[str, str, str], float]:
    """Return the seconds of a step by stage, kind of work and layer."""
    parts: dict[tuple[str, str, str], float] = {}
    for operator in operators(config, batch * padded_length(config, batch, fitted.tail)):
        key = (operator.stage, operator.kind, operator.layer)
        parts[key] = parts.get(key, 0.0) + operator_seconds(operator, gpu, config.precision, fitted)
    return parts


def step_seconds(config: FineTuning, gpu: Gpu, batch: int, fitted: Coefficients) -> float:
    """Return the modelled seconds of a step of `batch` sequences."""
    return sum(step_parts(config, gpu, batch, fitted).values())


def token_bytes(config: FineTuning, fitted: MemoryCoefficients) -> float:
    """Return what a token takes of the memory at the peak of a step, in bytes."""
    mixed = config.hidden * (2 + MIXER_VALUES[config.mixer])
    routed = config.top_k * (3 * config.expert_hidden + 2 * config.hidden)
    block = config.value_bytes * (mixed + routed)
    logits = config.vocabulary * (config.value_bytes + LOGIT_BYTES)
    if config.checkpointing:
        return logits + config.layers * config.value_bytes * config.hidden + fitted.recomputed * block
    return logits + fitted.kept * config.layers * block


def fixed_bytes(config: FineTuning) -> float:
    """Return what a step takes whatever its batch: state, gradients, context, one dequantised matrix."""
    gradients = config.trainable_bytes * config.trainable
    unpacked = config.value_bytes * config.hidden * config.expert_hidden if config.method == "qlora" else 0
    return RESERVED + config.state_bytes + gradients + unpacked


def largest_batch(config: FineTuning, memory: int, length: int, fitted: MemoryCoefficients) -> int:
    """Return how many sequences of `length` tokens fit `memory` bytes; 0 if not even one."""
    return max(0, int((memory - fixed_bytes(config)) / (length * token_bytes(config, fitted))))
