"""Methods that choose what to train on: utterances, by what the model learns from each, or a part of their words."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bttlab.data import Samples, epoch_order
from bttlab.model import equal_length_batches
from bttlab.model.batches import batch_logits
from bttlab_methods.method import Method
from bttlab_methods.setting import SCORED_AT_ONCE
from bttlab_methods.training import Batch, Training


def prediction_errors(model: nn.Module, samples: Samples) -> list[Tensor]:
    """Return the probabilities less the one-hot labels: shapes (n, intents) and (n, words, slots)."""
    *both, intents, slots = batch_logits(model, samples)
    pairs = zip(both, (intents, slots), strict=True)
    return [logits.softmax(-1) - F.one_hot(labels, logits.shape[-1]) for logits, labels in pairs]


@dataclass(frozen=True)
class ImportanceGradient(Method):
    """Draw utterances by the norm of the gradient at the heads' inputs, a bound of the whole gradient's.

    A drawn utterance counts as much less as it is drawn more often: the mean of the gradient stays.
    """

    name = "importance-gradient"
    family = "data"
    source = "Katharopoulos and Fleuret, arXiv 1803.00942, section 3 and algorithm 1"
    changes = frozenset({"samples"})
    ranges = ("candidates in [1, inf)", "uniform in (0, 1]")

    candidates: int = 3  # utterances that are scored for each that is drawn
    uniform: float = 0.2  # part of the draws that scores have no say in: no weight exceeds its inverse

    def batches(self, training: Training, epoch: int) -> Iterator[Batch]:
        samples, size = training.samples, self.candidates * training.setting.batch
        order = epoch_order(len(samples), training.setting.seed, epoch)
        for indices in equal_length_batches(order, samples.lengths, size, training.random):
            chances = self.chances(training, samples[indices])
            drawn = training.random.choice(len(indices), -(-len(indices) // self.candidates), p=chances)
            weights = 1 / (len(indices) * chances[drawn])
            yield Batch(samples[indices[drawn]], weights.astype(np.float32))

    @torch.no_grad()
    def chances(self, training: Training, candidates: Samples) -> np.ndarray:
        """Return the probability of each candidate of equal length, float64 of shape (n,); their sum is 1.

        Where scores tell nothing, as with heads that are 0, all are alike.
        """
        training.model.train(False)
        scores = gradient_norms(training.model, candidates).double().cpu().numpy()
        training.model.train()
        if not 0 < scores.sum() < np.inf:
            return np.full(len(scores), 1 / len(scores))
        return (1 - self.uniform) * scores / scores.sum() + self.uniform / len(scores)


def gradient_norms(model: nn.Module, samples: Samples) -> Tensor:
    """Return the norm of each loss' gradient with respect to the heads' inputs, shape (n,)."""
    intent, slots = prediction_errors(model, samples)
    gradients = intent @ model.intent_head.weight, slots @ model.slot_head.weight / slots.shape[1]
    return torch.cat([gradient.flatten(1) for gradient in gradients], 1).norm(dim=1)


@dataclass(frozen=True)
class _DataPruning(Method):
    """Keep the part of the utterances with the highest `scores(training)`, shape (n,), of a subclass."""

    family = "data"
    changes = frozenset({"samples"})
    ranges = ("share in (0, 1]", "look in (0, 1)")

    share: float = 0.5  # part of the utterances that is kept
    look: float = 0.3  # part of the budget that is trained on all of them first

    def batches(self, training: Training, epoch: int) -> Iterator[Batch]:
        if self.name not in training.extra:
            for batch in training.epoch_batches(epoch):
                yield batch
                if training.progress >= self.look:
                    break
            else:
                return
            count = max(1, round(self.share * len(training.samples)))
            training.extra[self.name] = np.sort(np.argsort(-self.scores(training), kind="stable")[:count])
        yield from training.epoch_batches(epoch, training.extra[self.name])

    def finish(self, training: Training) -> dict[str, Any]:
        return {"utterances_kept": len(training.extra.get(self.name, training.samples))}


class DataPruningEarly(_DataPruning):
    """Train on all utterances early, then on the part whose errors (probabilities less labels) are largest."""

    name = "data-pruning-early"
    source = "Paul et al., arXiv 2107.07075, section 2 (EL2N scores early in training)"

    def scores(self, training: Training) -> np.ndarray:
        return _of_each(training, lambda part: error_norms(training.model, part))


def error_norms(model: nn.Module, samples: Samples) -> Tensor:
    """Return the norm of the intent's errors plus the mean norm of the slots' (EL2N), shape (n,)."""
    intent, slots = prediction_errors(model, samples)
    return intent.norm(dim=1) + slots.norm(dim=2).mean(1)


@dataclass(frozen=True)
class DataPruningKMeans(_DataPruning):
    """Train on all utterances early, then on the part that lies farthest from the centres that k-means finds.

    No label has a say. The paper clusters the features of a model that was trained on its own; here they are those of
    [CLS] behind the last encoder of this model, after the look.
    """

    name = "data-pruning-kmeans"
    source = "Sorscher et al., arXiv 2206.14486 (self-supervised prototypes)"
    ranges = (*_DataPruning.ranges, "clusters in [1, inf)")

    clusters: int = 20

    def scores(self, training: Training) -> np.ndarray:
        from scipy.cluster.vq import kmeans2
        from scipy.spatial.distance import cdist

        behind: list[Tensor] = []  # the last encoder, at [CLS]

        def features_of(part: Samples) -> Tensor:
            batch_logits(training.model, part)
            return behind.pop()

        hook = training.model.encoders[-1].register_forward_hook(lambda module, inputs, x: behind.append(x[:, 0]))
        features = _of_each(training, features_of)
        hook.remove()
        drawn = training.random.choice(len(features), min(self.clusters, len(features)), replace=False)
        centres, _ = kmeans2(features, features[drawn], iter=20, minit="matrix")
        return cdist(features, centres).min(1)


@torch.no_grad()
def _of_each(training: Training, of_batch: Callable[[Samples], Tensor]) -> np.ndarray:
    """Return what is found of each of n samples, in batches of equal length, of the model as it is: shape (n, ...)."""
    samples = training.samples
    batches = equal_length_batches(np.arange(len(samples)), samples.lengths, SCORED_AT_ONCE, np.random.default_rng(0))
    training.model.train(False)
    found = [of_batch(samples[indices]).cpu().numpy() for indices in batches]
    training.model.train()
    return np.concatenate(found)[np.argsort(np.concatenate(batches))]


@dataclass(frozen=True)
class TokenDropping(Method):
    """Train without a random part of each utterance's words and their slots: masked tokens are removed, not computed.

    Those that stay keep their positions; [CLS] and at least one word stay. Evaluation takes whole utterances.
    """

    name = "token-dropping"
    family = "data"
    source = "He et al., arXiv 2111.06377, section 3 (MAE encoder: masked tokens are removed)"
    changes = frozenset({"tokens"})
    ranges = ("share in [0, 1)",)

    share: float = 0.15  # part of the words that goes

    def change_model(self, training: Training) -> None:
        embedding = training.model.embedding
        embedding.positions = None
        embedding.forward = partial(_embed, embedding, embedding.forward)

    def change_batch(self, training: Training, batch: Batch) -> Batch:
        samples = batch.samples
        count, words = len(samples), int(samples.lengths[0]) - 1
        staying = max(1, round((1 - self.share) * words))
        chosen = training.random.random((count, words)).argsort(1, kind="stable")[:, :staying]
        places = np.concatenate([np.zeros((count, 1), np.int64), 1 + np.sort(chosen, 1)], 1)
        training.model.embedding.positions = torch.from_numpy(places).to(training.device)
        tokens, slots = (np.zeros_like(array) for array in (samples.tokens, samples.slots))
        tokens[:, : staying + 1] = np.take_along_axis(samples.tokens, places, 1)
        slots[:, : staying + 1] = np.take_along_axis(samples.slots, places, 1)
        lengths = np.full_like(samples.lengths, staying + 1)
        return replace(batch, samples=replace(samples, tokens=tokens, slots=slots, lengths=lengths))


def _embed(embedding: nn.Module, embed: Callable[[Tensor], Tensor], tokens: Tensor) -> Tensor:
    """Map tokens (..., T) to (..., T, hidden), in a training step by their `embedding.positions`, int64 of (n, T)."""
    if embedding.training and embedding.positions is not None:
        return embedding.norm(embedding.word(tokens) + embedding.position(embedding.positions))
    return embed(tokens)
