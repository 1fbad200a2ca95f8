"""Scores of a trained model on a split."""

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch

from bttlab.data import Corpus, Samples
from bttlab.data.metrics import score
from bttlab.data.tags import TagDecoder
from bttlab.model import Predictions, Trainer, Transformer, batch_logits, equal_length_batches
from bttlab.model.loop import chunks
from bttlab.train.progress import ProgressBar
from bttlab.train.stop import StopSignals


def evaluate(
    trainer: Trainer,
    samples: Samples,
    corpus: Corpus,
    split: str,
    progress: ProgressBar,
    stop: StopSignals | None = None,
    decode_tags: bool = False,
) -> dict[str, Any]:
    """Predict a split, or its first utterances, and score it.

    Parameters
    ----------
    decode_tags : bool
        As in `RunSettings`.

    Returns
    -------
    dict
        "mean_loss" and the fields of `bttlab.data.metrics.Scores`.

    Raises
    ------
    StopRequested
        Between two chunks, if the user asked for it.
    """
    predictions = predict_split(trainer, samples, split, progress, stop)
    if decode_tags:
        decoder = TagDecoder(corpus.slot_labels, corpus.intent_labels, corpus.train)
        predictions = decoded(trainer, samples, predictions, decoder)
    return scores_of(predictions, corpus, split, len(samples))


def decoded(trainer: Trainer, samples: Samples, predictions: Predictions, decoder: TagDecoder) -> Predictions:
    """Return predictions with decoded tags, from logits that PyTorch computes with the trainer's parameters."""
    model, slots = Transformer(trainer.config), np.zeros_like(predictions.slots)
    model.load(trainer.store_parameters())
    random = np.random.default_rng(0)  # of the order of batches, which nothing depends on
    with torch.no_grad():
        for batch in equal_length_batches(np.arange(len(samples)), samples.lengths, 64, random):
            words = int(samples.lengths[batch[0]]) - 1
            if words:
                _, logits, _, _ = batch_logits(model, samples[batch])
                slots[batch, 1 : words + 1] = decoder.decode(logits.numpy(), predictions.intents[batch])
    return replace(predictions, slots=slots)


def scores_of(predictions: Predictions, corpus: Corpus, split: str, most: int | None = None) -> dict[str, Any]:
    """Score predictions of a split's first `most` utterances (default: all); returns the same as `evaluate`."""
    scores = score(corpus, corpus.split(split)[:most], predictions)
    mean_loss = float(np.mean(predictions.losses, dtype=np.float64))
    return {"mean_loss": mean_loss, **asdict(scores)}


def predict_split(
    trainer: Trainer, samples: Samples, split: str, progress: ProgressBar, stop: StopSignals | None = None
) -> Predictions:
    """Predict a split. Parameters and errors are those of `evaluate`."""
    parts = []
    progress.begin(f"{split} split", len(samples))
    try:
        for part in chunks(0, len(samples)):
            parts.append(trainer.predict(samples[part]))
            progress.advance(parts[-1].losses)
            if stop is not None:
                stop.check()
    finally:
        progress.end()
    columns = ([getattr(part, name) for part in parts] for name in ("losses", "intents", "slots"))
    return Predictions(*map(np.concatenate, columns))


def describe(scores: dict[str, Any]) -> str:
    """Return scores as a phrase."""
    intent, slot, frame = (100 * scores[name] for name in ("intent_accuracy", "slot_f1", "frame_accuracy"))
    return (
        f"intent accuracy {intent:.1f} %, slot F1 {slot:.1f} %, frame accuracy {frame:.1f} %, "
        f"mean loss {scores['mean_loss']:.3f}"
    )


def counted(number: int, noun: str) -> str:
    """Return "1 epoch", "2 epochs"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
