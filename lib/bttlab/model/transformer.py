"""The transformer in PyTorch, dense or tensor-compressed (arXiv 2501.06663)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bttlab.model.choices import IGNORED
from bttlab.model.config import LINEARS, ModelConfig
from bttlab.model.initial import initial_parameters
from bttlab.tensor import TTLinear, TTMEmbedding

LAYER_NORM_EPSILON = 1e-5


class Transformer(nn.Module):
    """Joint intent and slot labelling of utterances.

    Its parameters have the names and shapes of `ModelConfig.parameter_shapes`.

    Parameters
    ----------
    config : ModelConfig
        The model.
    flow : str
        Order of contraction in the TT layers, as for `bttlab.tensor.TTLinear`; no effect on a dense model.
    seed : int
        With which `initial_parameters` draws them; PyTorch's global generator is not used.
    """

    def __init__(self, config: ModelConfig, flow: str = "bidirectional", seed: int = 0):
        super().__init__()
        self.config = config
        self.embedding = Embedding(config)
        self.encoders = nn.ModuleList(Encoder(config, flow, i) for i in range(config.encoders))
        self.intent_pooler = _linear(config, flow, "intent_pooler")
        self.slot_pooler = _linear(config, flow, "slot_pooler")
        self.intent_head = nn.Linear(config.hidden_size, config.intents)
        self.slot_head = nn.Linear(config.hidden_size, config.slots)
        self.load(initial_parameters(config, seed))

    def load(self, parameters: Mapping[str, np.ndarray]) -> None:
        """Set the parameters from arrays with the names of `ModelConfig.parameter_shapes`."""
        self.load_state_dict({name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in parameters.items()})

    @torch.no_grad()
    def to_dense(self) -> "Transformer":
        """Return the dense model with the same weight matrices."""
        dense = Transformer(replace(self.config, format="dense", ranks=()))
        state = {name: value for name, value in self.state_dict().items() if ".cores." not in name}
        for name, layer in self.named_modules():
            if name and hasattr(layer, "to_dense"):
                state[f"{name}.weight"] = layer.to_dense()
        dense.load_state_dict(state)
        return dense

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of an utterance, or of several of equal length.

        The tokens, int64 of shape (..., T), are real ones, [CLS] first; 1 <= T <= sequence_length. Intent logits have
        the shape (..., intents), slot logits (..., T - 1, slots): those of the words, which are tokens 1 to T - 1.
        """
        x = self.embedding(tokens)
        for encoder in self.encoders:
            x = encoder(x)
        return self.label(x)

    def label(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of `forward` from the output of the last encoder, shape (..., T, hidden)."""
        intent = self.intent_head(torch.tanh(self.intent_pooler(x[..., :1, :])))
        slots = self.slot_head(torch.tanh(self.slot_pooler(x[..., 1:, :])))
        return intent[..., 0, :], slots


class Embedding(nn.Module):
    """LayerNorm(word[token] + position[0 .. T-1])."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        if config.format == "tensor":
            self.word = TTMEmbedding(
                config.vocabulary_size,
                config.hidden_size,
                config.embedding_row_modes,
                config.embedding_column_modes,
                config.rank_of("embedding.word"),
            )
        else:
            self.word = nn.Embedding(config.vocabulary_size, config.hidden_size)
        self.position = nn.Embedding(config.sequence_length, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, LAYER_NORM_EPSILON)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (..., T) to (..., T, hidden)."""
        return self.norm(self.word(tokens) + self.position.weight[: tokens.shape[-1]])


class Encoder(nn.Module):
    """Post-norm encoder block: h = norm(x + output(attention(x))), y = norm(h + second(activate(first(h))))."""

    # softmax(q k^T / sqrt(head size)) v for tensors of shape (utterances, heads, T, head size); this fused kernel is at
    # batch 1 a fifth faster than two products.
    attend = staticmethod(F.scaled_dot_product_attention)
    query: nn.Module
    key: nn.Module
    value: nn.Module
    output: nn.Module
    first: nn.Module
    second: nn.Module

    def __init__(self, config: ModelConfig, flow: str, number: int):
        super().__init__()
        self.heads = config.heads
        self.activate = torch.tanh if config.activation == "tanh" else getattr(F, config.activation)
        for name in LINEARS:
            setattr(self, name, _linear(config, flow, f"encoders.{number}.{name}"))
        self.attention_norm = nn.LayerNorm(config.hidden_size, LAYER_NORM_EPSILON)
        self.feed_forward_norm = nn.LayerNorm(config.hidden_size, LAYER_NORM_EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., T, hidden) to (..., T, hidden)."""
        heads = self.attend(self._split(self.query(x)), self._split(self.key(x)), self._split(self.value(x)))
        heads = heads.transpose(1, 2).flatten(2)  # as wide as x, or narrower if this process has part of the heads
        h = self.attention_norm(x + self.output(heads.view(*x.shape[:-1], heads.shape[-1])))
        return self.feed_forward_norm(h + self.second(self.activate(self.first(h))))

    def _split(self, x: Tensor) -> Tensor:
        """Map (..., T, hidden) to (utterances, heads, T, head size)."""
        return x.view(-1, x.shape[-2], self.heads, x.shape[-1] // self.heads).transpose(1, 2)


def ignore_index_of(network: nn.Module) -> int | None:
    """Return the slot label that the loss of a network leaves out: that of `network_of`'s model."""
    index = getattr(network, "ignore_index", None)
    if isinstance(index, int):
        return index
    return 0 if getattr(getattr(network, "config", None), "ignore_pad", False) is True else None


def loss(
    intent_logits: Tensor | None,
    slot_logits: Tensor | None,
    intent: Tensor,
    slots: Tensor,
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
) -> Tensor:
    """Return a sample's loss: cross-entropy of the intent plus mean cross-entropy of the slots of its words.

    Parameters
    ----------
    intent_logits : Tensor or None
        Shape (intents,).
    slot_logits : Tensor or None
        Shape (words, slots).
    intent : Tensor
        Int64, ().
    slots : Tensor
        Int64, (words,).
    label_smoothing : float
        The part of each target that is spread evenly over all classes (Szegedy et al., arXiv 1512.00567, section 7).
    ignore_index : int, optional
        Slot label of words that are left out of the mean.

    Returns
    -------
    Tensor
        Shape ().
    """
    parts = [
        F.cross_entropy(logits, labels, label_smoothing=label_smoothing, ignore_index=ignored)
        for logits, labels, ignored in (
            (intent_logits, intent, IGNORED),
            (slot_logits, slots, IGNORED if ignore_index is None else ignore_index),
        )
        if logits is not None
    ]
    return parts[0] if len(parts) == 1 else parts[0] + parts[1]


def sample_losses(
    intent_logits: Tensor | None,
    slot_logits: Tensor | None,
    intents: Tensor,
    slots: Tensor,
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
) -> Tensor:
    """Return the losses of n samples of equal length.

    Parameters
    ----------
    intent_logits : Tensor or None
        Shape (n, intents).
    slot_logits : Tensor or None
        Shape (n, words, slots).
    intents : Tensor
        Int64, (n,).
    slots : Tensor
        Int64, (n, words).
    label_smoothing, ignore_index : optional
        As for `loss`.

    Returns
    -------
    Tensor
        Shape (n,).
    """
    keywords: Any = {"reduction": "none", "label_smoothing": label_smoothing}
    parts = [] if intent_logits is None else [F.cross_entropy(intent_logits, intents, **keywords)]
    if slot_logits is not None:
        ignored = IGNORED if ignore_index is None else ignore_index
        of_words = F.cross_entropy(slot_logits.transpose(1, 2), slots, ignore_index=ignored, **keywords)
        parts.append(of_words.mean(1) if ignore_index is None else of_words.sum(1) / (slots != ignored).sum(1))
    return parts[0] if len(parts) == 1 else parts[0] + parts[1]


def _linear(config: ModelConfig, flow: str, name: str) -> nn.Module:
    hidden = config.hidden_size
    if config.format == "dense":
        return nn.Linear(hidden, hidden)
    return TTLinear(hidden, hidden, config.linear_out_modes, config.linear_in_modes, config.rank_of(name), flow)
