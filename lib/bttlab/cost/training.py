"""One fine-tuning run: a model, its optimizer, real tokens, and clocks."""

import time

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from bttlab.cost.configuration import CostError, FineTuning
from bttlab.cost.mixtral import Mixtral
from bttlab.cost.transformer import MixtureTransformer, add_adapters
from bttlab.data import Corpus, Vocabulary
from bttlab.data.vocabulary import CLS_ID

LEARNING_RATE = 1e-3


def token_stream(corpus: Corpus, vocabulary: int) -> np.ndarray:
    """Return the training split of a corpus as one stream of token ids, [CLS] before each utterance, shape (n,)."""
    known = Vocabulary.from_sentences(corpus.train.words, vocabulary)
    return np.array([token for words in corpus.train.words for token in (CLS_ID, *map(known.token, words))])


class Run:
    """A fine-tuning run with AdamW on sequences of a token stream, drawn at random.

    Parameters
    ----------
    config : FineTuning
    device : str
        "cpu" or "cuda".
    stream : ndarray of int, shape (n,), optional
        Token ids; random ones if there is none, which take the same time and memory.
    seed : int

    Raises
    ------
    CostError
        If the stream is shorter than a sequence, or the model is one that is estimated only.
    """

    def __init__(self, config: FineTuning, device: str = "cpu", stream: np.ndarray | None = None, seed: int = 0):
        plain = {"mixer": "attention", "key_value_heads": 0, "adapted": "all", "precision": "fp32"}
        plain |= {"checkpointing": False, "padding": "none"}
        if config.method == "qlora" or any(getattr(config, name) != value for name, value in plain.items()):
            raise CostError(f"{config}: it can be estimated, not measured; the profiler runs FP32, full or with LoRA")
        torch.manual_seed(seed)
        self.config, self.device = config, device
        self._random = np.random.default_rng(seed)
        if stream is None:
            stream = self._random.integers(config.vocabulary, size=100_000)
        if len(stream) <= config.sequence_length:
            raise CostError(
                f"the corpus has {len(stream)} tokens, a sequence {config.sequence_length}; take shorter sequences"
            )
        self._stream = stream
        self.model = (Mixtral if config.architecture == "mixtral" else MixtureTransformer)(config)
        if config.method == "lora":
            add_adapters(self.model, config.lora_rank)
        self.model.to(device)
        self.optimizer = torch.optim.AdamW(
            [parameter for parameter in self.model.parameters() if parameter.requires_grad], lr=LEARNING_RATE
        )

    def batch(self, size: int) -> Tensor:
        """Return `size` sequences and of each the token that follows, (B, S + 1)."""
        starts = self._random.integers(len(self._stream) - self.config.sequence_length, size=size)
        picked = self._stream[starts[:, None] + np.arange(self.config.sequence_length + 1)]
        return torch.from_numpy(picked).to(self.device)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the mean cross-entropy of the next tokens; `tokens` as from `batch`."""
        logits = self.model(tokens[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    def step(self, tokens: Tensor) -> float:
        """Train on a batch and return its loss."""
        self.optimizer.zero_grad()
        loss = self.forward(tokens)
        loss.backward()
        self.optimizer.step()
        return loss.item()


def parts_of(model: nn.Module) -> dict[str, list[nn.Module]]:
    """Return the modules of each kind of layer: attention, router, experts, norm."""
    endings = {"attention": "Attention", "router": "Router", "experts": "Experts", "norm": "RMSNorm"}
    modules = list(model.modules())
    return {kind: [m for m in modules if type(m).__name__.endswith(end)] for kind, end in endings.items()}


class CpuClock:
    """CPU time of this process: what other processes take of the machine is not in it."""

    how = "time.process_time, one thread"

    def read(self) -> float:
        """Return seconds since an arbitrary moment."""
        return time.process_time()


class CudaClock:
    """Wall time, the GPU having finished what it was given."""

    how = "time.perf_counter after torch.cuda.synchronize"

    def read(self) -> float:
        """Return seconds since an arbitrary moment."""
        torch.cuda.synchronize()
        return time.perf_counter()


def clock_of(device: str) -> CpuClock | CudaClock:
    """Return the clock for a device."""
    return CudaClock() if device == "cuda" else CpuClock()
