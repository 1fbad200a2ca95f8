"""Memory of a GPU over a training step: what lasts from step to step, and what each phase of a step adds to it.

A step has three phases, and its peak is that of the largest. When the loss is computed, the activations that are kept
and the logits are there. When the last block is done backward, all gradients are. When the optimizer updates, so are
the tensors that it makes.
"""

from dataclasses import dataclass

from bttlab_cost.configuration import FineTuning

RESERVED = 2**30  # bytes that context and libraries take before the first tensor; an assumption
MIXER_VALUES = {"attention": 6, "mamba": 10}  # hidden vectors that a mixer keeps of a token


@dataclass(frozen=True)
class MemoryCoefficients:
    """The fitted numbers of the memory of a step."""

    kept: float  # multiple of the activations that are counted, where all of them are kept for the way back
    recomputed: float  # the same for the one block that checkpointing computes again
    logit: float  # bytes of a logit at the peak: the model's own, its copies in FP32, and their gradients
    sharded: float  # multiple of what a token takes where weights are gathered block by block (ZeRO-3, FSDP)


@dataclass(frozen=True)
class Footprint:
    """Bytes that a GPU holds: what lasts, and for each phase of a step what it adds, at all and for each token."""

    lasting: float
    phases: tuple[tuple[float, float], ...]

    def added(self, tokens: float) -> float:
        """Return what the largest phase of a step of `tokens` tokens, padding included, adds."""
        return max(fixed + token * tokens for fixed, token in self.phases)

    def peak(self, tokens: float) -> float:
        return self.lasting + self.added(tokens)

    def band(self, tokens: float, factor: float) -> tuple[float, float, float]:
        """Return low, middle and high of a peak that may be off by a factor; what lasts is counted, and a least."""
        peak = self.peak(tokens)
        return max(self.lasting, peak / factor), peak, peak * factor

    def tokens(self, memory: float, factor: float = 1.0) -> float:
        """Return how many tokens fit if the peak is `factor` times lower; less than 0 if none does."""
        left = factor * memory - self.lasting
        if self.lasting > memory or any(fixed > left for fixed, _ in self.phases):
            return -1.0
        return min((left - fixed) / token for fixed, token in self.phases if token)


def activation_bytes(config: FineTuning, fitted: MemoryCoefficients, split: int = 1) -> tuple[float, float]:
    """Return what a token takes when the loss is computed, and when the last block is done backward, in bytes.

    `split` GPUs share what is inside of a block, and the logits.
    """
    shared = MIXER_VALUES[config.mixer] * config.hidden
    shared += config.top_k * len(config.expert_matrices) * config.expert_hidden
    block = config.value_bytes * (2 * config.hidden * (1 + config.top_k) + shared / split)
    logits = config.vocabulary * fitted.logit / split
    if config.checkpointing:
        again = fitted.recomputed * block
        return config.layers * config.value_bytes * config.hidden + max(logits, again), again
    return fitted.kept * config.layers * block + logits, 0.0


def gradient_bytes(config: FineTuning) -> float:
    return (config.value_bytes if config.mixed else config.trainable_bytes) * config.trainable


def own_bytes(config: FineTuning) -> float:
    """Return what no strategy shares: the bytes of the context and of one matrix in BF16 whose weights are packed."""
    return RESERVED + (config.value_bytes * config.hidden * config.expert_hidden if config.packed else 0)
