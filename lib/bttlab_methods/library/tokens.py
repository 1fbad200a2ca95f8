"""Methods that take a part of the words out of each training utterance."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bttlab.model import batch_logits
from bttlab_methods.method import Method
from bttlab_methods.training import Batch, Training


def place_and_embed(embedding: nn.Module, embed: Callable[[Tensor], Tensor], tokens: Tensor) -> Tensor:
    """Map tokens (..., T) to (..., T, hidden), in a training step by their `embedding.positions`, int64 of (n, T)."""
    if embedding.training and embedding.positions is not None:
        return embedding.norm(embedding.word(tokens) + embedding.position(embedding.positions))
    return embed(tokens)


@dataclass(frozen=True)
class TokenDropping(Method):
    """Train without a random part of each utterance's words and their slots: masked tokens are removed, not computed.

    Those that stay keep their positions; [CLS] and at least one word stay. Evaluation takes whole utterances.

    Parameters
    ----------
    share : float
        Part of the words that goes, at least 0 and below 1.
    """

    name = "token-dropping"
    family = "data"
    source = "He et al., arXiv 2111.06377, section 3 (MAE encoder: masked tokens are removed)"
    changes = frozenset({"tokens"})
    ranges = ("share in [0, 1)",)

    share: float = 0.15

    def change_model(self, training: Training) -> None:
        """Give the embedding a place for positions."""
        embedding = training.model.embedding
        embedding.positions = None
        embedding.forward = partial(place_and_embed, embedding, embedding.forward)

    def worth(self, training: Training, tokens: np.ndarray) -> np.ndarray:
        """Return in which order the tokens of utterances stay, the highest first: shape (n, tokens)."""
        return -training.random.random(tokens.shape)

    def change_batch(self, training: Training, batch: Batch) -> Batch:
        """Return the batch with fewer words, the same number of each utterance."""
        samples = batch.samples
        count, words = len(samples), int(samples.lengths[0]) - 1
        staying = max(1, round((1 - self.share) * words))
        chosen = (-self.worth(training, samples.tokens[:, 1 : words + 1])).argsort(1, kind="stable")[:, :staying]
        places = np.concatenate([np.zeros((count, 1), np.int64), 1 + np.sort(chosen, 1)], 1)
        training.model.embedding.positions = torch.from_numpy(places).to(training.device)
        tokens, slots = (np.zeros_like(array) for array in (samples.tokens, samples.slots))
        tokens[:, : staying + 1] = np.take_along_axis(samples.tokens, places, 1)
        slots[:, : staying + 1] = np.take_along_axis(samples.slots, places, 1)
        lengths = np.full_like(samples.lengths, staying + 1)
        return replace(batch, samples=replace(samples, tokens=tokens, slots=slots, lengths=lengths))


MEMORY = 0.9  # of a token's mean loss, over the steps that have it


@dataclass(frozen=True)
class TokenSelection(TokenDropping):
    """Train without those words of each utterance whose slots have had the lowest loss, and without their slots.

    Every token of the vocabulary has a running mean of its slots' losses; tokens never seen stay first. In the
    paper the others skip the middle layers of a deep model and come back for the last; here they are not computed at
    all. Evaluation takes whole utterances.

    Parameters
    ----------
    share : float
        Part of the words that goes, at least 0 and below 1.
    """

    name = "token-selection"
    source = "Hou et al., arXiv 2203.13240, section 3 (importance by a token's mean loss)"

    def change_model(self, training: Training) -> None:
        """Give the embedding a place for positions, and every token a mean loss."""
        super().change_model(training)
        training.extra["losses of tokens"] = np.full(training.setting.config.vocabulary_size, np.inf)

    def worth(self, training: Training, tokens: np.ndarray) -> np.ndarray:
        """Return the tokens' mean losses."""
        return training.extra["losses of tokens"][tokens]

    def losses(self, training: Training, batch: Batch) -> Tensor:
        """Return the samples' losses, and note those of the tokens."""
        intent_logits, slot_logits, intents, slots = batch_logits(training.model, batch.samples)
        of_tokens = F.cross_entropy(slot_logits.transpose(1, 2), slots, reduction="none")
        losses, mean = of_tokens.detach().cpu().numpy(), training.extra["losses of tokens"]
        tokens = batch.samples.tokens[:, 1 : 1 + losses.shape[1]]
        for token in np.unique(tokens):
            now = losses[tokens == token].mean()
            mean[token] = now if np.isinf(mean[token]) else MEMORY * mean[token] + (1 - MEMORY) * now
        return F.cross_entropy(intent_logits, intents, reduction="none") + of_tokens.mean(1)
