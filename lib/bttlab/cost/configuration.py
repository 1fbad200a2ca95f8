"""What is fine-tuned, and how: the shapes that every count, prediction and measurement starts from."""

from dataclasses import dataclass, fields

from bttlab.errors import BttlabError

FLOAT_BYTES = 4  # everything here is FP32
METHODS = ("full", "lora")
ARCHITECTURES = ("bttlab", "mixtral")


class CostError(BttlabError):
    """A fine-tuning run that cannot be measured or estimated as asked."""


@dataclass(frozen=True)
class FineTuning:
    """A mixture-of-experts transformer and the way it is fine-tuned.

    Attributes
    ----------
    layers, hidden, heads : int
        Transformer blocks, their width, and the attention heads that share it.
    experts, top_k : int
        Experts of each block, and to how many of them a token goes; all of them is *dense*.
    expert_hidden : int
        Inner width of an expert (SwiGLU: three matrices).
    sequence_length : int
        Tokens of a sequence.
    method : {"full", "lora"}
        Train every parameter, or low-rank adapters of every linear layer but the output.
    lora_rank : int
    vocabulary : int
    architecture : {"bttlab", "mixtral"}
        Our own transformer, or Mixtral's of Hugging Face transformers, whose experts LoRA leaves alone.

    Raises
    ------
    CostError
        If the numbers do not make a model.
    """

    layers: int = 2
    hidden: int = 128
    heads: int = 4
    experts: int = 8
    top_k: int = 2
    expert_hidden: int = 256
    sequence_length: int = 64
    method: str = "full"
    lora_rank: int = 8
    vocabulary: int = 1000
    architecture: str = "bttlab"

    def __post_init__(self):
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type in (int, "int") and (not isinstance(value, int) or value < 1):
                raise CostError(f"{field.name} is {value!r}: it must be a whole number from 1 on")
        if self.top_k > self.experts:
            raise CostError(f"top_k is {self.top_k}: a token can go to at most the {self.experts} experts there are")
        if self.hidden % self.heads or self.hidden // self.heads % 2:
            raise CostError(f"hidden is {self.hidden}: it must be an even multiple of the {self.heads} heads")
        if self.method not in METHODS:
            raise CostError(f"method {self.method!r}: choose {' or '.join(METHODS)}")
        if self.architecture not in ARCHITECTURES:
            raise CostError(f"architecture {self.architecture!r}: choose {' or '.join(ARCHITECTURES)}")

    @property
    def sparsity(self) -> float:
        """Share of the experts that a token goes to (Xia et al., arXiv 2408.04693, §V-A); 1 is dense."""
        return self.top_k / self.experts

    @property
    def parameters(self) -> int:
        """Parameters of the model without adapters."""
        blocks = self.layers * (self._linears("all") + 2 * self.hidden)
        return blocks + 2 * self.vocabulary * self.hidden + self.hidden

    @property
    def adapters(self) -> int:
        """Parameters of the adapters; 0 for full fine-tuning."""
        if self.method == "full":
            return 0
        hidden, inner, rank = self.hidden, self.expert_hidden, self.lora_rank
        attention = 4 * 2 * hidden * rank
        if self.architecture == "mixtral":
            return self.layers * attention
        return self.layers * (attention + (hidden + self.experts) * rank + self.experts * 3 * (hidden + inner) * rank)

    @property
    def trainable(self) -> int:
        """Parameters that have a gradient and two moments of AdamW."""
        return self.adapters or self.parameters

    @property
    def state_bytes(self) -> int:
        """Parameters, adapters and AdamW's moments: what a training run holds between two steps, in bytes."""
        return FLOAT_BYTES * (self.parameters + self.adapters + 2 * self.trainable)

    def _linears(self, which: str) -> int:
        """Elements of a block's matrices: of "all" experts, or of those that are "active" for a token."""
        experts = self.experts if which == "all" else self.top_k
        return 4 * self.hidden**2 + self.hidden * self.experts + experts * 3 * self.hidden * self.expert_hidden

    @property
    def active(self) -> int:
        """Parameters that a token is multiplied with, the output matrix among them: MACs of a token's forward pass."""
        return self.layers * self._linears("active") + self.vocabulary * self.hidden

    def __str__(self) -> str:
        lora = f" rank {self.lora_rank}" if self.method == "lora" else ""
        name = "Mixtral, " if self.architecture == "mixtral" else ""
        return (
            f"{name}{self.layers} layers of {self.hidden}, top {self.top_k} of {self.experts} experts of "
            f"{self.expert_hidden}, sequences of {self.sequence_length}, {self.method}{lora}"
        )
