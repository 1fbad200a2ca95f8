"""Importance sampling: utterances that the model learns more from are drawn more often, and count less."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bttlab.data import Samples, epoch_order
from bttlab.model import batch_logits, equal_length_batches
from bttlab_methods.method import Method
from bttlab_methods.training import Batch, Training


@dataclass(frozen=True)
class ImportanceSampling(Method):
    """Draw utterances in proportion to a score; a subclass computes the score.

    Parameters
    ----------
    candidates : int
        Utterances that are scored for each that is drawn.
    uniform : float
        Part of the draws that scores have no say in, 0 to 1: no weight exceeds its inverse.
    """

    family = "data"
    changes = frozenset({"samples"})
    ranges = ("candidates in [1, inf)", "uniform in (0, 1]")

    candidates: int = 3
    uniform: float = 0.2

    def score(self, training: Training, errors: tuple[Tensor, Tensor]) -> Tensor:
        """Return how much a step learns from each of n utterances, shape (n,), from their `errors`."""
        raise NotImplementedError

    def batches(self, training: Training, samples: Samples, epoch: int) -> Iterator[Batch]:
        """Yield batches drawn from larger ones of equal length, with the weights that make up for it."""
        setting = training.setting
        order = epoch_order(len(samples), setting.seed, epoch)
        size = self.candidates * setting.batch
        for indices in equal_length_batches(order, samples.lengths, size, training.random):
            chances = self.chances(training, samples[indices])
            count = -(-len(indices) // self.candidates)
            drawn = training.random.choice(len(indices), count, p=chances)
            weights = 1 / (len(indices) * chances[drawn])
            yield Batch(samples[indices[drawn]], weights.astype(np.float32), indices[drawn])

    @torch.no_grad()
    def chances(self, training: Training, candidates: Samples) -> np.ndarray:
        """Return the probability of each candidate of equal length, float64 of shape (n,); their sum is 1.

        Where scores tell nothing, as with heads that are 0, all are alike.
        """
        training.model.train(False)
        scores = (
            self.score(training, prediction_errors(*batch_logits(training.model, candidates))).double().cpu().numpy()
        )
        training.model.train()
        if not 0 < scores.sum() < np.inf:
            return np.full(len(scores), 1 / len(scores))
        return (1 - self.uniform) * scores / scores.sum() + self.uniform / len(scores)


@dataclass(frozen=True)
class ImportanceGradient(ImportanceSampling):
    """Draw utterances by the norm of the gradient at the heads' inputs, a bound of the whole gradient's.

    Parameters
    ----------
    candidates, uniform
        As for `ImportanceSampling`.
    """

    name = "importance-gradient"
    source = "Katharopoulos and Fleuret, arXiv 1803.00942, section 3 and algorithm 1"

    def score(self, training: Training, errors: tuple[Tensor, Tensor]) -> Tensor:
        """Return the norm of the gradient of each loss by what goes into the heads."""
        (intent, slots), model = errors, training.model
        gradients = intent @ model.intent_head.weight, slots @ model.slot_head.weight / slots.shape[1]
        return torch.cat([gradient.flatten(1) for gradient in gradients], 1).norm(dim=1)


@dataclass(frozen=True)
class ImportanceError(ImportanceSampling):
    """Draw utterances by the norm of their errors: probabilities less labels (EL2N), slots as a mean over words.

    Parameters
    ----------
    candidates, uniform
        As for `ImportanceSampling`.
    """

    name = "importance-error"
    source = "Paul et al., arXiv 2107.07075, section 2 (EL2N); weights: Katharopoulos and Fleuret, arXiv 1803.00942"

    def score(self, training: Training, errors: tuple[Tensor, Tensor]) -> Tensor:
        """Return the norm of the intent's errors plus the mean norm of the slots'."""
        intent, slots = errors
        return intent.norm(dim=1) + slots.norm(dim=2).mean(1)


def prediction_errors(
    intent_logits: Tensor, slot_logits: Tensor, intents: Tensor, slots: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the probabilities less the one-hot labels: shapes (n, intents) and (n, words, slots)."""
    return tuple(
        logits.softmax(-1) - F.one_hot(labels, logits.shape[-1])
        for logits, labels in ((intent_logits, intents), (slot_logits, slots))
    )
