"""A training step on a GPU as a list of operators, counted from the shapes of a model and the way it is fine-tuned.

Kernels are those of eager PyTorch as the published runs used it (transformers 4.40, peft 0.7, bitsandbytes 0.42, their
BlackMamba), counted from the source. A backward pass starts half as many again as the forward pass it belongs to.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bttlab_cost.configuration import FineTuning

TILE = 64  # rows of a tile of a matrix product on tensor cores; fewer rows take the same time
ADAPTER_KERNELS = 11  # casts of input and both factors, two products, scaling, sum
EXPERT_KERNELS = 16  # which tokens, gather, activation, product, weights, scatter
MIXER_KERNELS = {"attention": 40, "mamba": 24}  # rotation, masks, softmax; convolution, scan, gate
FLASH_KERNELS = {"attention": 14, "block": 24, "expert": 4, "adapter": 8}  # with FlashAttention and dense layers
BLOCK_KERNELS = 40  # two norms, two residual sums, router with softmax and choice
OUTPUT_KERNELS = 10
# Vectors of the hidden size that elementwise work moves for a token, of BF16 values or twice as wide ones in FP32. What
# Mamba has, its scan and how much more that takes backward than forward, was set by the published stages of
# BlackMamba's steps: two more fitted numbers.
MIXER_PASSES = {"attention": 8, "mamba": 40}
MIXER_BACKWARD = {"attention": 2, "mamba": 6}
BLOCK_PASSES = 16  # norms and residual sums are in FP32
# Reads and writes of an element by AdamW, which torch runs as eight passes over lists, and by a fused kernel: weight,
# gradient and two moments read, all but the gradient written. With moments in eight bits it moves four bytes for these.
OPTIMIZER_ACCESSES = {"adamw": 20, "adamw-fused": 7, "adamw-8bit": 3}
OPTIMIZER_KERNELS = 200


@dataclass(frozen=True)
class Operator:
    """One kind of work of a step, done `times` times."""

    stage: str  # "forward", "backward", "optimizer"; recomputation belongs to the backward pass
    # "experts", "feed-forward", "dequantisation", "adapters", "elementwise", "mixer", "output", "optimizer"
    kind: str
    # where it is: "experts", "feed-forward", "mixer", "block" (norms, residuals and router), "output", "optimizer"
    layer: str
    times: float
    # flops, traffic, elementwise: of one: floating-point operations of matrix products, bytes that must move, and bytes
    # of elementwise work, whose number of passes the model fits
    flops: float = 0.0
    traffic: float = 0.0
    elementwise: float = 0.0
    # kernels, wrapped: of one: launches, and forward calls of quantised layers, which take time of the host beside
    # their kernels
    kernels: float = 0.0
    wrapped: float = 0.0


def operators(config: FineTuning, tokens: float | np.ndarray) -> list[Operator]:
    """Return the operators of a step on `tokens` tokens, padding included; counts have the shape of `tokens`."""
    step: list[Operator] = []
    step += _block(config, tokens, "forward", again=False)
    step += _output(config, tokens)
    if config.checkpointing:
        step += _block(config, tokens, "backward", again=False)
    step += _block(config, tokens, "backward", again=True)
    if config.offload == "none":  # else the host updates: `bttlab_cost.parallel`
        moved = OPTIMIZER_ACCESSES[config.optimizer] * config.trainable_bytes + 4 * (config.optimizer == "adamw-8bit")
        traffic, share = moved * config.trainable, 1 / config.accumulation
        step.append(Operator("optimizer", "optimizer", "optimizer", share, traffic=traffic, kernels=OPTIMIZER_KERNELS))
    return step


def _block(config: FineTuning, tokens: float, stage: str, again: bool) -> Iterator[Operator]:
    """All blocks once, forward or (`again`) backward."""
    layers, hidden, size = config.layers, config.hidden, config.value_bytes
    busy = config.experts * (1 - (1 - config.sparsity) ** tokens)  # experts that get a token if all are as likely
    rows = tokens * config.top_k / busy
    work, launches = (2.0, 1.5) if again else (1.0, 1.0)
    blocks = config.expert_blocks
    for inputs, outputs in config.expert_matrices if blocks else ():
        adapted = config.experts_adapted
        yield from _linear(config, stage, again, "experts", blocks * busy, rows, inputs, outputs, adapted)
    flash = config.kernels == "flash"
    moved = rows * size * (3 * config.expert_hidden + 3 * hidden)
    kernels = FLASH_KERNELS["expert"] if flash and config.experts == 1 else EXPERT_KERNELS
    times = (blocks or layers) * busy
    yield Operator(stage, "elementwise", "experts", times, elementwise=work * moved, kernels=launches * kernels)
    for inputs, outputs, number, adapted, layer, _ in config.mixers:
        yield from _linear(config, stage, again, layer, number, tokens, inputs, outputs, adapted)
    moved = tokens * size * hidden * MIXER_PASSES[config.mixer] * (0.5 if flash else 1)
    width = (config.head_size or hidden // config.heads) * config.heads
    scores = 4.0 * tokens * config.sequence_length * width if config.mixer == "attention" else 0.0
    scanned = MIXER_BACKWARD[config.mixer] if again else 1
    kernels = launches * (FLASH_KERNELS["attention"] if flash else MIXER_KERNELS[config.mixer])
    # FlashAttention skips what a causal mask hides, at half the rate of large products, and what a window hides; it
    # computes scores twice.
    scores *= (2.5 if flash else 2.0) if again else 1.0
    scores *= config.seen if flash else 1.0
    yield Operator(stage, "mixer", "mixer", layers, scores, 0.0, scanned * moved, kernels)
    moved = tokens * size * hidden * BLOCK_PASSES
    kernels = launches * (FLASH_KERNELS["block"] if flash else BLOCK_KERNELS)
    yield Operator(stage, "elementwise", "block", layers, elementwise=work * moved, kernels=kernels)


def _linear(
    config: FineTuning,
    stage: str,
    again: bool,
    layer: str,
    times: float,
    rows: float,
    inputs: int,
    outputs: int,
    adapted: bool,
) -> Iterator[Operator]:
    """One linear layer: the product, with NF4 its dequantisation, with LoRA its adapter."""
    weights, size = inputs * outputs, config.value_bytes
    products = 2 if again and config.method == "full" else 1  # of the input's gradient, and of the weight's
    tiled = np.maximum(TILE, rows + TILE / 2)  # the mean of whole tiles; a ceiling would make the fit discontinuous
    yield Operator(
        stage,
        layer,
        layer,
        times * products,
        2.0 * tiled * weights,
        size * (weights + rows * (inputs + outputs)),
        kernels=1,
    )
    if config.packed:
        moved = (config.packed + size) * weights
        yield Operator(stage, "dequantisation", layer, times, traffic=moved, wrapped=0 if again else 1)
    if adapted:
        work, launches = (2.0, 1.5) if again else (1.0, 1.0)
        moved = 3 * size * rows * (inputs + outputs)
        kernels = launches * (FLASH_KERNELS["adapter"] if config.kernels == "flash" else ADAPTER_KERNELS)
        yield Operator(stage, "adapters", layer, times, elementwise=work * moved, kernels=kernels)


def _output(config: FineTuning, tokens: float) -> Iterator[Operator]:
    """Logits and loss: the logits are copied to FP32, and have a gradient."""
    weights, size = config.vocabulary * config.hidden, config.value_bytes
    for stage, products in (("forward", 1), ("backward", 2 if config.method == "full" else 1)):
        traffic = size * weights + 12.0 * tokens * config.vocabulary
        yield Operator(stage, "output", "output", products, 2.0 * tokens * weights, traffic, kernels=OUTPUT_KERNELS)
