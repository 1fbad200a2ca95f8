"""Token selection: the words that the model knows best are taken out of each training utterance."""

from dataclasses import dataclass

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from bttlab.model import batch_logits
from bttlab_methods.library.token_dropping import TokenDropping
from bttlab_methods.training import Batch, Training

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
