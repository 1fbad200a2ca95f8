"""Token selection: the words that the model knows best are taken out of each training utterance."""

from dataclasses import dataclass

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from bttlab.methods.library.token_dropping import TokenDropping
from bttlab.methods.training import Batch, Training
from bttlab.model import batch_logits

MEMORY = 0.9  # of a word's mean loss, over the steps that have it


@dataclass(frozen=True)
class TokenSelection(TokenDropping):
    """Train without those words of each utterance whose slots have had the lowest loss, and without their slots.

    Every word of the vocabulary has a running mean of its slots' losses; words that were never seen stay first. In the
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
        """Give the embedding a place for positions, and every word a mean loss."""
        super().change_model(training)
        training.extra["losses of words"] = np.full(training.setting.config.vocabulary_size, np.inf)

    def worth(self, training: Training, words: np.ndarray) -> np.ndarray:
        """Return the words' mean losses."""
        return training.extra["losses of words"][words]

    def losses(self, training: Training, batch: Batch) -> Tensor:
        """Return the samples' losses, and note those of the words."""
        intent_logits, slot_logits, intents, slots = batch_logits(training.model, batch.samples)
        of_words = F.cross_entropy(slot_logits.transpose(1, 2), slots, reduction="none")
        found, mean = of_words.detach().cpu().numpy(), training.extra["losses of words"]
        words = batch.samples.tokens[:, 1 : 1 + found.shape[1]]
        for word in np.unique(words):
            now = found[words == word].mean()
            mean[word] = now if np.isinf(mean[word]) else MEMORY * mean[word] + (1 - MEMORY) * now
        return F.cross_entropy(intent_logits, intents, reduction="none") + of_words.mean(1)
