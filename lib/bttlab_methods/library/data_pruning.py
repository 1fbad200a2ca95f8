"""Data pruning: after a look at all utterances, a part of them is trained on."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bttlab.data import Samples
from bttlab.model import batch_logits, equal_length_batches
from bttlab_methods.library.importance import prediction_errors
from bttlab_methods.method import Method
from bttlab_methods.training import Batch, Training

SCORED_AT_ONCE = 64  # utterances
ROUNDS = 20  # of k-means


@dataclass(frozen=True)
class DataPruning(Method):
    """Keep the part of the utterances with the highest scores; a subclass computes the score.

    Parameters
    ----------
    share : float
        Part of the utterances that is kept: those with the highest scores.
    look : float
        Part of the budget that is trained on all of them first.
    """

    family = "data"
    changes = frozenset({"samples"})
    ranges = ("share in (0, 1]", "look in (0, 1)")

    share: float = 0.5
    look: float = 0.3

    def change_model(self, training: Training) -> None:
        """Remember which utterances are kept: at first all."""
        training.extra[self.name] = {"kept": None}

    def scores(self, training: Training, samples: Samples) -> np.ndarray:
        """Return how much there is to learn from each of n samples, shape (n,)."""
        raise NotImplementedError

    def batches(self, training: Training, samples: Samples, epoch: int) -> Iterator[Batch]:
        """Yield batches of all samples until there has been a look at them, then of those that are kept."""
        state = training.extra[self.name]
        if state["kept"] is None:
            for batch in training.epoch_batches(epoch):
                yield batch
                if training.progress >= self.look:
                    break
            else:
                return
            scores = self.scores(training, samples)
            state["kept"] = np.sort(np.argsort(-scores, kind="stable")[: max(1, round(self.share * len(samples)))])
        yield from training.epoch_batches(epoch, state["kept"])

    def finish(self, training: Training) -> dict[str, Any]:
        """Return how many utterances were kept."""
        kept = training.extra[self.name]["kept"]
        return {"utterances_kept": len(training.samples) if kept is None else len(kept)}


@dataclass(frozen=True)
class DataPruningEarly(DataPruning):
    """Train on all utterances early, then on the part whose errors are the largest: probabilities less labels (EL2N).

    Parameters
    ----------
    share, look
        As for `DataPruning`.
    """

    name = "data-pruning-early"
    source = "Paul et al., arXiv 2107.07075, section 2 (EL2N scores early in training)"

    def scores(self, training: Training, samples: Samples) -> np.ndarray:
        """Return the norm of the intent's errors plus the mean norm of the slots'."""

        def score(part: Samples) -> Tensor:
            intent, slots = prediction_errors(*batch_logits(training.model, part))
            return intent.norm(dim=1) + slots.norm(dim=2).mean(1)

        return _of_each(training, samples, score)


@dataclass(frozen=True)
class DataPruningKMeans(DataPruning):
    """Train on all utterances early, then on the part that lies farthest from the centres that k-means finds.

    No label has a say. The paper clusters the features of a model that was trained on its own; here they are those of
    [CLS] behind the last encoder of this model, after the look.

    Parameters
    ----------
    share, look
        As for `DataPruning`.
    clusters : int
    """

    name = "data-pruning-kmeans"
    source = "Sorscher et al., arXiv 2206.14486 (self-supervised prototypes)"
    ranges = (*DataPruning.ranges, "clusters in [1, inf)")

    clusters: int = 20

    def scores(self, training: Training, samples: Samples) -> np.ndarray:
        """Return the distance of each utterance's features from the nearest centre."""
        from scipy.cluster.vq import kmeans2
        from scipy.spatial.distance import cdist

        behind: list[Tensor] = []  # the last encoder, at [CLS]

        def features_of(part: Samples) -> Tensor:
            batch_logits(training.model, part)
            return behind.pop()

        hook = training.model.encoders[-1].register_forward_hook(lambda module, inputs, x: behind.append(x[:, 0]))
        features = _of_each(training, samples, features_of)
        hook.remove()
        drawn = training.random.choice(len(features), min(self.clusters, len(features)), replace=False)
        centres, _ = kmeans2(features, features[drawn], ROUNDS, minit="matrix")
        return cdist(features, centres).min(1)


@torch.no_grad()
def _of_each(training: Training, samples: Samples, of_batch: Callable[[Samples], Tensor]) -> np.ndarray:
    """Return what is found of each of n samples, in batches of equal length, of the model as it is: shape (n, ...)."""
    every = None
    training.model.train(False)
    for indices in equal_length_batches(
        np.arange(len(samples)), samples.lengths, SCORED_AT_ONCE, np.random.default_rng(0)
    ):
        values = of_batch(samples[indices]).cpu().numpy()
        every = np.zeros((len(samples), *values.shape[1:]), values.dtype) if every is None else every
        every[indices] = values
    training.model.train()
    return every
