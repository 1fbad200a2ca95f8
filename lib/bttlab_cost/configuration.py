"""Model and method of a fine-tuning: the shapes that every count, prediction and measurement starts from."""

import math
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from bttlab.util.errors import BttlabError
from bttlab.util.settings import settings

VALUE_BYTES = {"fp32": 4, "bf16": 2}
ADAPTER_BYTES = 4  # adapters, their gradients and moments stay FP32 whatever the model is in
# Bytes of a weight that is packed: four bits, and an 8-bit scale for 64 of them (QLoRA, arXiv 2305.14314, §3); eight
# bits, with a scale for each row of a matrix (LLM.int8(), arXiv 2208.07339, §2)
PACKED = {"qlora": 0.5 + 1 / 64, "lora-int8": 1.0}
# Bytes of a moment of an 8-bit optimizer: FP32 scales of blocks of 2,048 (Dettmers et al., arXiv 2110.02861, §2.1)
MOMENT_8BIT = 1 + 4 / 2048
CUTOFF = 1024  # tokens of the longest sequence with padding: cutoff_len of the runs of Xia et al. (arXiv 2408.04693)
LONGEST = 7  # medians of the same: a rule of thumb that was read off the largest batches that they ran on an A40
_CUT = 16.0  # exponent of a smooth minimum of both: without a kink the fit has one optimum
STATE, CONVOLUTION = 16, 4  # of a Mamba block: state size and width of the convolution (arXiv 2312.00752, §3.6)
MOST_LAYERS = 1000  # of a config.json: more are a typing error, and take minutes to build
Size = Annotated[int, Field(ge=1)]
Part = Annotated[int, Field(ge=0)]  # 0: none, or as the other sizes have it
Precision = Literal["fp32", "bf16"]
Linear = tuple[int, int, int, str, int]


class CostError(BttlabError):
    """A fine-tuning run cannot be estimated as asked."""


@settings(CostError)
class FineTuning:
    """A transformer, dense or a mixture of experts, and the way it is fine-tuned.

    Raises CostError if the numbers do not make a model.
    """

    # layers, hidden, heads: blocks (each a mixer and its experts), their width, and the attention heads that share it
    layers: Size = 2
    hidden: Size = 128
    heads: Size = 4
    # experts, top_k: experts of each block, and to how many of them a token goes; all of them is *dense*. One expert is
    # a model without a choice, such as Llama.
    experts: Size = 8
    top_k: Size = 2
    expert_hidden: Size = 256  # inner width of an expert, or of the feed-forward layer
    sequence_length: Size = 64  # tokens of a sequence; with `padding` "longest" the median of the data set
    # train every parameter, or low-rank adapters over weights as they are, in four bits (NF4) or in eight (LLM.int8())
    method: Literal["full", "lora", "qlora", "lora-int8"] = "full"
    lora_rank: Size = 8
    vocabulary: Size = 1000
    # what mixes the tokens of a sequence; with "mamba" embedding and output are one matrix
    mixer: Literal["attention", "mamba"] = "attention"
    key_value_heads: Part = 0  # heads that keys and values have; 0: as many as queries
    # which linear layers have adapters: all but the output, experts and router, q, k, v and o, or queries and values
    adapted: Literal["all", "experts", "attention", "queries"] = "all"
    precision: Precision = "fp32"  # of weights, gradients, moments and activations
    checkpointing: bool = False  # keep only what enters a block, and compute the block again on the way back
    # sequences all of one length, or of many lengths, a batch padded to its longest (`padded_length`)
    padding: Literal["none", "longest"] = "none"
    # feed-forward layers of three matrices (SwiGLU, as in Llama) or of two (GELU, as in GPT-2)
    mlp: Literal["gated", "plain"] = "gated"
    tied: bool = False  # whether embedding and output are one matrix; with "mamba" they are
    head_size: Part = 0  # width of a head, the mean of its queries' and values' width; 0: hidden / heads
    other: Part = 0  # parameters beside these matrices: position tables, biases, poolers
    # of full fine-tuning in BF16: mixed precision keeps weights and moments in FP32 beside the BF16 weights (16 bytes
    # per parameter), pure BF16 does not (8 bytes)
    state: Precision = "fp32"
    # eager attention and norms as in Xia et al., or FlashAttention 2; each has coefficients of its own
    kernels: Literal["eager", "flash"] = "eager"
    # micro-batches of an update: a step is one of them, and takes its share of the optimizer's time
    accumulation: Size = 1
    # AdamW as PyTorch has it (it updates lists of tensors, with temporaries), its fused kernel, or with moments in
    # eight bits (bitsandbytes)
    optimizer: Literal["adamw", "adamw-fused", "adamw-8bit"] = "adamw"
    # what the memory of the host holds: the optimizer's state, which the host then updates, or the weights, too, which
    # the GPU fetches block by block
    offload: Literal["none", "optimizer", "weights"] = "none"
    # parameters of the model, where they were counted (`bttlab_cost.architectures`); 0: they follow from the shapes
    counted: Part = 0
    # inputs, outputs, number of products, kind ("queries", "mixer", "mlp") of the linear layers outside of experts, and
    # products of a token with each matrix (ALBERT's blocks are one); empty: they follow from the shapes
    linears: tuple[Linear, ...] = ()
    # tokens back that attention sees, and the number of such layers; the others see all. FlashAttention skips the rest
    windows: tuple[tuple[Size, Size], ...] = ()
    expert_layers: Part = 0  # with `linears`: layers that have experts

    def __post_init__(self):
        if self.top_k > self.experts:
            raise CostError(f"top_k is {self.top_k}: a token can go to at most the {self.experts} experts there are")
        if not self.head_size and (self.hidden % self.heads or self.hidden // self.heads % 2):
            raise CostError(f"hidden is {self.hidden}: it must be an even multiple of the {self.heads} heads")
        if self.key_value_heads and self.heads % self.key_value_heads:
            raise CostError(f"key_value_heads is {self.key_value_heads}: it must divide the {self.heads} heads")
        if self.offload != "none" and self.optimizer == "adamw-8bit":
            raise CostError("optimizer is adamw-8bit: with offload the host updates, in FP32; leave one out")

    @property
    def longest_length(self) -> int:
        """Tokens of the longest sequence that a run meets."""
        if self.padding == "none":
            return self.sequence_length
        return max(self.sequence_length, min(CUTOFF, LONGEST * self.sequence_length))

    def padded_length(self, batch: int, tail: float | np.ndarray) -> float | np.ndarray:
        """Return the expected tokens of each sequence of a batch with its padding; it has the shape of `tail`.

        `tail` is the mean excess of the lengths over their shortest, tokens: a fitted coefficient. Beyond their
        shortest, lengths are taken to be exponential: the longest of B sequences is expected to lie tail (H_B - ln 2)
        tokens above the median, H_B = 1 + 1/2 + … + 1/B. One tail serves both data sets of Xia et al., whose medians
        are 79 and 174 tokens.
        """
        longest = self.longest_length
        if longest == self.sequence_length:  # no padding, or none is longer
            return longest + 0.0 * tail
        harmonic = math.fsum(1 / place for place in range(1, batch + 1))
        expected = self.sequence_length + tail * (harmonic - math.log(2))
        return (longest**-_CUT + expected**-_CUT) ** (-1 / _CUT)

    @property
    def sparsity(self) -> float:
        """Share of the experts that a token goes to (Xia et al., arXiv 2408.04693, §V-A); 1 is dense."""
        return self.top_k / self.experts

    @property
    def value_bytes(self) -> int:
        return VALUE_BYTES[self.precision]

    @property
    def mixer_matrices(self) -> tuple[tuple[int, int], ...]:
        """Matrices of a block's mixer: inputs and outputs of each."""
        hidden = self.hidden
        if self.mixer == "mamba":
            inner, rank = 2 * hidden, math.ceil(hidden / 16)
            return (hidden, 2 * inner), (inner, rank + 2 * STATE), (rank, inner), (inner, hidden)
        size = self.head_size or hidden // self.heads
        wide, narrow = size * self.heads, size * (self.key_value_heads or self.heads)
        return (hidden, wide), (hidden, narrow), (hidden, narrow), (wide, hidden)

    @property
    def expert_matrices(self) -> tuple[tuple[int, int], ...]:
        hidden, inner = self.hidden, self.expert_hidden
        return ((hidden, inner),) * (2 if self.mlp == "gated" else 1) + ((inner, hidden),)

    @property
    def mixers(self) -> list[tuple[int, int, int, bool, str, int]]:
        """Linear layers outside of experts: inputs, outputs, products, whether they have adapters, layer, matrices.

        The layer is "mixer", or "feed-forward" of a config.json's linear layers of kind "mlp". There are fewer matrices
        than products where blocks share them.
        """
        if self.linears:
            kinds = {"experts": ("mlp",), "attention": ("queries", "mixer"), "queries": ("queries",)}
            adapted = kinds.get(self.adapted, ("queries", "mixer", "mlp"))
            return [
                (
                    inputs,
                    outputs,
                    number,
                    self.method != "full" and kind in adapted,
                    "feed-forward" if kind == "mlp" else "mixer",
                    number // uses,
                )
                for inputs, outputs, number, kind, uses in self.linears
            ]
        named = {"experts": (), "queries": (0, 2)}.get(self.adapted, (0, 1, 2, 3))
        return [
            (inputs, outputs, self.layers, self.method != "full" and place in named, "mixer", self.layers)
            for place, (inputs, outputs) in enumerate(self.mixer_matrices)
        ]

    @property
    def expert_blocks(self) -> int:
        """Layers that have experts, or the feed-forward layer."""
        return self.expert_layers if self.linears else self.layers

    @property
    def parameters(self) -> int:
        if self.counted:
            return self.counted
        vectors = 2 * self.hidden
        if self.mixer == "mamba":  # convolution with its bias, decay, skip and the step's bias
            vectors += 2 * self.hidden * (CONVOLUTION + 1 + STATE + 1 + 1)
        tables = 1 if self.mixer == "mamba" or self.tied else 2
        blocks = self.linear_elements() + self.layers * vectors
        return blocks + tables * self.vocabulary * self.hidden + self.hidden + self.other

    @property
    def adapters(self) -> int:
        """Parameters of the adapters; 0 for full fine-tuning."""
        if self.method == "full":
            return 0
        mixers = sum(
            (inputs + outputs) * matrices for inputs, outputs, _, adapted, _, matrices in self.mixers if adapted
        )
        router = self.hidden + self.experts if self.experts > 1 else 0
        experts = self.expert_blocks * (router + self.experts * sum(map(sum, self.expert_matrices)))
        return self.lora_rank * (mixers + (experts if self.experts_adapted else 0))

    @property
    def experts_adapted(self) -> bool:
        """True if the matrices of experts, or of the feed-forward layer, have adapters."""
        return self.method != "full" and self.adapted in ("all", "experts")

    @property
    def trainable(self) -> int:
        """Parameters that have a gradient and two moments of AdamW."""
        return self.adapters or self.parameters

    @property
    def mixed(self) -> bool:
        """True if BF16 weights are trained through a copy in FP32."""
        return self.method == "full" and self.precision == "bf16" and self.state == "fp32"

    @property
    def trainable_bytes(self) -> int:
        """Bytes of a value that is trained, and of each of its moments."""
        return ADAPTER_BYTES if self.adapters or self.mixed else self.value_bytes

    @property
    def packed(self) -> float:
        """Bytes of a weight of the blocks' matrices if they are packed in four or eight bits; else 0."""
        return PACKED.get(self.method, 0.0)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the model's weights without adapters; with QLoRA the blocks' matrices take four bits an element."""
        if not self.packed:
            return self.value_bytes * self.parameters
        packed = self.linear_elements() - self.shared_elements
        return int(self.packed * packed) + self.value_bytes * (self.parameters - packed)

    @property
    def optimizer_bytes(self) -> float:
        """Bytes of both moments, and of the FP32 copy of the weights in mixed precision."""
        moment = MOMENT_8BIT if self.optimizer == "adamw-8bit" else self.trainable_bytes
        return 2 * moment * self.trainable + (4 * self.parameters if self.mixed else 0)

    @property
    def update_bytes(self) -> int:
        """Bytes of what the update makes: AdamW over lists has the roots of all second moments at once."""
        return self.trainable_bytes * self.trainable if self.optimizer == "adamw" else 0

    @property
    def state_bytes(self) -> float:
        """Weights, their FP32 copy, adapters and AdamW's moments: what a run holds between two steps, in bytes."""
        return self.weight_bytes + ADAPTER_BYTES * self.adapters + self.optimizer_bytes

    def linear_elements(self, experts: int | None = None) -> int:
        """Return the elements of the blocks' matrices, with `experts` experts of each layer (by default all).

        A matrix that several blocks share counts for each.
        """
        mixers = sum(inputs * outputs * number for inputs, outputs, number, *_ in self.mixers)
        router = self.hidden * self.experts if self.experts > 1 else 0
        one = sum(inputs * outputs for inputs, outputs in self.expert_matrices)
        return mixers + self.expert_blocks * (router + (self.experts if experts is None else experts) * one)

    @property
    def shared_elements(self) -> int:
        """Elements of `linear_elements` that are counted before: matrices that several blocks share."""
        return sum(inputs * outputs * (number - matrices) for inputs, outputs, number, _, _, matrices in self.mixers)

    @property
    def seen(self) -> float:
        """Share of the pairs of tokens that attention computes with FlashAttention, over those without windows.

        A window of w of s tokens leaves 2 w s - w^2 of s^2 pairs.
        """
        narrow = [(min(1.0, window / self.sequence_length), layers) for window, layers in self.windows]
        return 1 - sum(layers * (1 - part) ** 2 for part, layers in narrow) / self.layers

    @property
    def active(self) -> int:
        """Parameters that a token is multiplied with, the output matrix among them: MACs of a token's forward pass."""
        return self.linear_elements(self.top_k) + self.vocabulary * self.hidden

    def __str__(self) -> str:
        method = self.method if self.method == "full" else f"{self.method} rank {self.lora_rank}"
        mixer = "Mamba, " if self.mixer == "mamba" else ""
        experts = (
            f"top {self.top_k} of {self.experts} experts" if self.experts > 1 else f"{self.mlp} feed-forward layers"
        )
        details = ("mixed precision, FP32 state" if self.mixed else self.precision) + (
            ", checkpointing" if self.checkpointing else ""
        )
        details += f", {self.optimizer}" if self.optimizer != "adamw" else ""
        details += f", {self.offload} in the host's memory" if self.offload != "none" else ""
        return (
            f"{mixer}{self.layers} layers of {self.hidden}, {experts} of {self.expert_hidden}, sequences of "
            f"{self.sequence_length}, {method}, {details}"
        )
