"""Configuration of a transformer and its optimizer."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from itertools import permutations
from numbers import Integral
from typing import Annotated, Any, Literal

from pydantic import Field

from bttlab.model.choices import OPTIMIZERS, Activation, OptimizerName
from bttlab.tensor.shapes import balanced_modes, check_modes, factors, full_ranks, tt_shapes, ttm_shapes
from bttlab.util.errors import BttlabError
from bttlab.util.settings import Count, settings

LINEARS = ("query", "key", "value", "output", "first", "second")  # of an encoder, in the order of the forward pass
BELOW_ONE = 1 - 2**-24  # the largest FP32 number below 1
LARGEST_BATCH = 1024
BYTES_PER_PARAMETER = 4  # FP32
# Larger values would need minutes or exhaust memory.
MOST_BYTES = 1 << 34  # of all parameters
MOST_FEATURES = 1 << 16
MOST_VOCABULARY = 216**3
Decay = Annotated[float, Field(ge=0, le=BELOW_ONE)]
Positive = Annotated[float, Field(ge=0, allow_inf_nan=False)]


HIDDEN_MODES = {"linear_out_modes", "linear_in_modes", "embedding_column_modes"}  # of the hidden size


class ConfigError(BttlabError, ValueError):
    """A configuration is invalid."""


class Parametric:
    @property
    def parameters_count(self) -> int:
        return sum(math.prod(shape) for shape in self.parameter_shapes().values())  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def parameters_bytes(self) -> int:
        """Size of the parameters in FP32."""
        return BYTES_PER_PARAMETER * self.parameters_count


@settings(ConfigError)
class ModelConfig(Parametric):
    """A transformer for joint intent and slot labelling (arXiv 2501.06663).

    Parameters
    ----------
    encoders : int
        Number of blocks.
    format : {"tensor", "dense"}
        "tensor" has linear layers in TT and the word embedding in TTM; "dense" has both as plain matrices. Modes and
        ranks are checked for "tensor" only.
    sequence_length : int
        Most tokens of a sample: [CLS] and at least a word.
    hidden_size : int
        Input and output size of every linear layer.
    heads : int
        Of attention; divides `hidden_size`.
    vocabulary_size : int
        Number of token ids.
    intents, slots : int
        Number of labels.
    linear_out_modes, linear_in_modes : sequence of int
        Factorisations of `hidden_size`.
    linear_rank : int
        Every internal rank of a linear layer.
    embedding_row_modes : sequence of int
        Factorisation of `vocabulary_size`.
    embedding_column_modes : sequence of int
        Factorisation of `hidden_size`.
    embedding_rank : int
        Every internal rank of the word embedding.
    activation : {"gelu", "relu", "silu", "tanh"}
        Of a feed-forward block.
    ignore_pad : bool
        Whether the loss leaves out words whose slot label is 0 (PAD), the subwords that continue a word: as PyTorch's
        `ignore_index`. The loss of the slots is then the mean over the other words.
    ranks : mapping of str to int or sequence of int
        Layers with other ranks, such as {"encoders.0.query": 6, "embedding.word": (20, 30)}: every internal rank, or
        all of them in order. Stored as sorted pairs.

    Raises
    ------
    ConfigError
        If a value is invalid.
    ShapeError
        If modes or ranks do not fit.
    """

    encoders: Count = Field(default=2, ge=1, le=128)
    format: Literal["tensor", "dense"] = "tensor"
    sequence_length: Count = Field(default=32, ge=2, le=1 << 12)
    hidden_size: Count = Field(default=768, ge=1, le=MOST_FEATURES)
    heads: Count = Field(default=12, ge=1, le=MOST_FEATURES)
    vocabulary_size: Count = Field(default=1000, ge=1, le=MOST_VOCABULARY)
    intents: Count = Field(default=22, ge=1, le=10**5)
    slots: Count = Field(default=122, ge=1, le=10**5)
    linear_out_modes: Any = (12, 8, 8)
    linear_in_modes: Any = (8, 8, 12)
    linear_rank: Count = Field(default=12, ge=1, le=10**5)
    embedding_row_modes: Any = (10, 10, 10)
    embedding_column_modes: Any = (12, 8, 8)
    embedding_rank: Count = Field(default=30, ge=1, le=10**5)
    activation: Activation = "gelu"
    ignore_pad: bool = False
    ranks: Any = ()

    def __post_init__(self) -> None:
        if self.hidden_size % self.heads:
            raise ConfigError(
                f"hidden_size {self.hidden_size} is not divisible by heads {self.heads}; "
                "choose heads that divide the hidden size"
            )
        sizes = {
            "linear_out_modes": self.hidden_size,
            "linear_in_modes": self.hidden_size,
            "embedding_row_modes": self.vocabulary_size,
            "embedding_column_modes": self.hidden_size,
        }
        for name, size in sizes.items():
            modes = check_modes(name, getattr(self, name), size if self.format == "tensor" else None)
            object.__setattr__(self, name, modes)
        object.__setattr__(self, "ranks", _pairs(self.ranks))
        if self.format == "tensor":
            full_ranks(self.linear_rank, len(self.linear_out_modes) + len(self.linear_in_modes))
            full_ranks(self.embedding_rank, len(self.embedding_row_modes))
            known = self.parameter_shapes()
            for name, _ in self.ranks:
                if f"{name}.cores.0" not in known:
                    raise ConfigError(
                        f"ranks name {name!r}, which is no layer of the model; layers are, for example, "
                        "encoders.0.query, intent_pooler and embedding.word"
                    )
        if self.parameters_bytes > MOST_BYTES:
            raise ConfigError(
                f"the model would have {self.parameters_bytes / 1e9:,.0f} GB of parameters: at most "
                f"{MOST_BYTES >> 30} GiB are allowed; take smaller ranks, or fewer or narrower layers"
            )

    @property
    def ignore_index(self) -> int | None:
        """The slot label that the loss leaves out, or None: as in `ModuleConfig`."""
        return 0 if self.ignore_pad else None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values (tuples become lists); the last three only if they are not default."""
        values = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        ranks = {name: list(rank) if isinstance(rank, tuple) else rank for name, rank in values.pop("ranks")}
        if self.activation == ModelConfig.activation:
            del values["activation"]
        if not self.ignore_pad:
            del values["ignore_pad"]
        return values | ({"ranks": ranks} if ranks else {})

    @classmethod
    def of_sizes(cls, values: Mapping[str, Any]) -> "ModelConfig":
        """Build a configuration of some fields: a size that comes without modes has those that are found for it."""
        values = dict(values)
        heads = values.pop("heads", cls.heads)
        hidden = None if values.keys() & HIDDEN_MODES else values.pop("hidden_size", None)
        vocabulary = None if "embedding_row_modes" in values else values.pop("vocabulary_size", None)
        config = cls(**values, heads=1)
        config = config if hidden is None else config.with_hidden_size(hidden)
        config = config if vocabulary is None else config.with_vocabulary(vocabulary)
        return replace(config, heads=heads)

    def rank_of(self, layer: str) -> int | tuple[int, ...]:
        """Return the rank of a layer: one for all bonds between its cores, or each internal rank."""
        default = self.embedding_rank if layer.startswith("embedding.") else self.linear_rank
        return dict(self.ranks).get(layer, default)

    def with_hidden_size(self, size: int) -> "ModelConfig":
        """Return this configuration with another hidden size.

        Its modes are the three factors with the smallest sum, the largest first (last in `linear_in_modes`): 12, 8, 8
        for 768. They have another order if the card needs that to fill its vectors.

        Raises ConfigError or ShapeError if the size is not an integer of at least 1, too large, or not
        divisible by the heads.
        """
        if not isinstance(size, Integral) or not 1 <= size <= MOST_FEATURES:
            raise ConfigError(f"hidden_size is {size!r}: it must be an integer of 1 to {MOST_FEATURES:,}")
        orders = list(permutations(factors(size)))
        out = next((order for order in orders if _fills_vectors(*order[:2])), orders[0])
        # A block of the card's shuffle unit can store 16 rows of the middle mode if that mode is at most 8.
        columns = next((order for order in orders if order[1] <= 8 and _fills_vectors(*order[1:])), orders[0])
        return replace(
            self, hidden_size=size, linear_out_modes=out, linear_in_modes=out[::-1], embedding_column_modes=columns
        )

    def with_vocabulary(self, tokens: int) -> "ModelConfig":
        """Return this configuration with a vocabulary of at least `tokens` token ids.

        The vocabulary size is the smallest sufficient product of three modes that differ by at most 1.

        Raises ConfigError or ShapeError if the number is not an integer of at least 1, or too large.
        """
        if not isinstance(tokens, Integral) or not 1 <= tokens <= MOST_VOCABULARY:
            raise ConfigError(f"vocabulary is {tokens!r}: it must be an integer of 1 to {MOST_VOCABULARY:,}")
        modes = balanced_modes(tokens)
        return replace(self, vocabulary_size=math.prod(modes), embedding_row_modes=modes)

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return every parameter's name and shape, in the order of storage."""
        hidden = self.hidden_size
        shapes: dict[str, tuple[int, ...]] = {}

        def linear(name: str) -> None:
            if self.format == "tensor":
                cores = tt_shapes(self.linear_out_modes, self.linear_in_modes, self.rank_of(name))
                shapes.update({f"{name}.cores.{k}": shape for k, shape in enumerate(cores)})
            else:
                shapes[f"{name}.weight"] = (hidden, hidden)
            shapes[f"{name}.bias"] = (hidden,)

        def norm(name: str) -> None:
            shapes[f"{name}.weight"] = shapes[f"{name}.bias"] = (hidden,)

        def head(name: str, labels: int) -> None:
            shapes[f"{name}.weight"] = (labels, hidden)
            shapes[f"{name}.bias"] = (labels,)

        if self.format == "tensor":
            rank = self.rank_of("embedding.word")
            cores = ttm_shapes(self.embedding_row_modes, self.embedding_column_modes, rank)
            shapes.update({f"embedding.word.cores.{k}": shape for k, shape in enumerate(cores)})
        else:
            shapes["embedding.word.weight"] = (self.vocabulary_size, hidden)
        shapes["embedding.position.weight"] = (self.sequence_length, hidden)
        norm("embedding.norm")
        for i in range(self.encoders):
            for name in LINEARS:
                linear(f"encoders.{i}.{name}")
            norm(f"encoders.{i}.attention_norm")
            norm(f"encoders.{i}.feed_forward_norm")
        linear("intent_pooler")
        linear("slot_pooler")
        head("intent_head", self.intents)
        head("slot_head", self.slots)
        return shapes

    @property
    def task(self) -> str:
        return "classification and tagging"

    @property
    def title(self) -> str:
        return f"{self.encoders} encoders"

    @property
    def short_name(self) -> str:
        """Name in a legend."""
        return f"{self.encoders}-ENC"

    @property
    def slug(self) -> str:
        """Name used in names of runs and files."""
        return f"enc{self.encoders}"

    @property
    def identity(self) -> dict[str, int]:
        """Entry that identifies the model in results."""
        return {"encoders": self.encoders}


def _fills_vectors(*modes: int) -> bool:
    """Return True if the product of some modes is a multiple of the card's vectors of 16 (docs/processor.md)."""
    return not math.prod(modes) % 16


def _pairs(ranks: Any) -> tuple[tuple[str, int | tuple[int, ...]], ...]:
    """Return sorted pairs (layer, rank). `tt_shapes` and `ttm_shapes` check the ranks."""
    try:
        pairs = {str(name): tuple(rank) if isinstance(rank, Iterable) else rank for name, rank in dict(ranks).items()}
    except (TypeError, ValueError):
        raise ConfigError(f"ranks are {ranks!r}: give layers and their ranks, such as encoders.0.query=6") from None
    return tuple(sorted(pairs.items()))


@settings(ConfigError)
class Optimizer:
    """An update rule, with the semantics of torch.optim's SGD, SGD with momentum and AdamW.

    The learning rate is not part of it: each sample has its own. Training processes one sample at a time; `batch_size`
    consecutive samples share an update, also across epochs, with the learning rate of the last one. Each sample's
    gradient is added to the moments; a card may first sum the gradients of tensor-train layers over the samples.

    Parameters
    ----------
    name : {"sgd", "momentum", "adamw"}
        "sgd": p -= lr g. "momentum": m = momentum m + g (m = g at the first step), p -= lr m. "adamw": p -= lr
        weight_decay p for every parameter, then Adam with bias correction.
    momentum : float
        Decay of the moment of "momentum".
    beta1, beta2 : float
        Decays of AdamW's moments.
    epsilon : float
        Added to the root of AdamW's second moment.
    weight_decay : float
        Of AdamW.
    batch_size : int
        Samples of an update, which uses the mean of their gradients: SGD and momentum are then those of torch.optim.
        AdamW uses the sum of the samples' squared gradients, not the square of their sum, as AdamA does (Zhang et al.,
        arXiv 2305.19982). The moments are those of the sum of gradients, not of their mean.

    Raises
    ------
    ConfigError
        If a value is invalid.
    """

    name: OptimizerName = Field(default="sgd", title="optimizer")
    momentum: Decay = 0.9
    beta1: Decay = 0.9
    beta2: Decay = 0.999
    epsilon: Positive = 1e-8
    weight_decay: Positive = 0.01
    batch_size: Count = Field(default=1, ge=1, le=LARGEST_BATCH)

    @property
    def rule(self) -> OptimizerName:
        """Name of the rule that the card runs: SGD with batches is momentum with a moment that is reset each update."""
        return "momentum" if self.name == "sgd" and self.batch_size > 1 else self.name

    @property
    def decay(self) -> float:
        """Decay factor of the first moment at the beginning of an update."""
        constants = OPTIMIZERS[self.name].constants
        return getattr(self, constants[0]) if constants else 0.0

    @property
    def moments(self) -> tuple[str, ...]:
        """Names of the moments that the rule stores for each parameter."""
        return OPTIMIZERS[self.rule].moments

    @property
    def sums_gradients(self) -> bool:
        """True if an update takes nothing of its samples' gradients but their sum."""
        return OPTIMIZERS[self.name].sums_gradients
