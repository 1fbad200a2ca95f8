"""Batches of utterances of equal length, which need neither padding nor masks."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from bttlab.model.trainer import Predictions
from bttlab.model.transformer import ignore_index_of, sample_losses


def equal_length_batches(order: np.ndarray, lengths: np.ndarray, size: int, random: np.random.Generator):
    """Return the indices of samples by batch, each of utterances of equal length, the batches in random order.

    Parameters
    ----------
    order : np.ndarray
        Indices of samples. Those of the same length keep their order.
    lengths : np.ndarray
        Number of real tokens of every sample.
    size : int
        Most samples of a batch.
    random : np.random.Generator
        Draws the order of the batches.

    Returns
    -------
    list of np.ndarray
        Indices of each batch.
    """
    groups = [order[lengths[order] == length] for length in np.unique(lengths[order])]
    batches = [group[i : i + size] for group in groups for i in range(0, len(group), size)]
    return [batches[i] for i in random.permutation(len(batches))]


def batch_logits(model: nn.Module, samples) -> tuple[Tensor | None, Tensor | None, Tensor, Tensor]:
    """Return the logits and labels of n samples of equal length, on the model's device.

    Parameters
    ----------
    model : nn.Module
        Of `network_of`.
    samples : Samples
        n samples of equal length.

    Returns
    -------
    intent_logits : Tensor or None
        Shape (n, intents).
    slot_logits : Tensor or None
        Shape (n, words, slots).
    intents : Tensor
        Int64, (n,).
    slots : Tensor
        Int64, (n, words).
    """
    length = int(samples.lengths[0])
    tokens, intents, slots = _on_device(model, samples.tokens[:, :length], samples.intents, samples.slots[:, 1:length])
    return *model(tokens), intents, slots


def batch_losses(model: nn.Module, samples, label_smoothing: float = 0.0) -> Tensor:
    """Return the losses of n samples of equal length, on the model's device.

    Parameters
    ----------
    model : nn.Module
        Of `network_of`.
    samples : Samples
        n samples of equal length.
    label_smoothing : float
        As for `loss`.

    Returns
    -------
    Tensor
        Shape (n,).
    """
    return sample_losses(*batch_logits(model, samples), label_smoothing, ignore_index_of(model))


@torch.no_grad()
def predict_in_batches(
    model: nn.Module,
    samples,
    size: int = 64,
    choose_tags: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray] = lambda logits, intents, labels: (
        logits.argmax(2)
    ),
    predicted: Callable[[np.ndarray], None] = lambda losses: None,
) -> Predictions:
    """Predict in batches, in evaluation mode; equal to `bttlab.model.predict` except for rounding.

    Parameters
    ----------
    model : nn.Module
        Of `network_of`.
    samples : Samples
        n samples.
    size : int
        Most samples of a batch.
    choose_tags : callable
        From the slot logits of m samples, shape (m, words, slots), their predicted intents, which are past all labels
        of a model without intents, and their slot labels, shape (m, words), to slot labels of that shape; by default
        the largest logits.
    predicted : callable
        Gets the losses of each batch.

    Returns
    -------
    Predictions
        Of the n samples.
    """
    was_training = model.training
    model.train(False)
    losses = np.zeros(len(samples), np.float32)
    intents = np.zeros(len(samples), np.int32)
    labels = np.zeros(samples.slots.shape, np.int32)
    for batch in equal_length_batches(np.arange(len(samples)), samples.lengths, size, np.random.default_rng(0)):
        intent_logits, slot_logits, gold, slots = batch_logits(model, samples[batch])
        of_batch = sample_losses(intent_logits, slot_logits, gold, slots, ignore_index=ignore_index_of(model))
        losses[batch] = of_batch.cpu().numpy()
        chosen = np.full(len(batch), np.iinfo(np.int32).max)
        if intent_logits is not None:
            intents[batch] = chosen = intent_logits.argmax(1).cpu().numpy()
        if slot_logits is not None:
            labels[batch, 1 : slot_logits.shape[1] + 1] = choose_tags(
                slot_logits.cpu().numpy(), chosen, slots.cpu().numpy()
            )
        predicted(losses[batch])
    model.train(was_training)
    return Predictions(losses, intents, labels)


def _on_device(model: nn.Module, *arrays: np.ndarray) -> list[Tensor]:
    device = next(model.parameters()).device
    return [torch.from_numpy(array.astype(np.int64)).to(device) for array in arrays]
