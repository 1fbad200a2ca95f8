"""Scores of a trained model on a split."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from bttlab.data import Corpus, Samples
from bttlab.data.metrics import score
from bttlab.data.tags import TagDecoder
from bttlab.model import LANGUAGE_MODEL, Predictions, Trainer
from bttlab.model.loop import chunks
from bttlab.runs.labelling import logits_of
from bttlab.runs.progress import ProgressBar
from bttlab.runs.stop import StopSignals

SCORES = {  # name: tasks that it takes
    "intent_accuracy": ("classification",),
    "slot_f1": ("tagging",),
    "frame_accuracy": ("classification", "tagging"),
}


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

    Raises StopRequested between two chunks, if the user asked for it.

    Parameters
    ----------
    decode_tags : bool
        As in `RunSettings`.

    Returns
    -------
    dict
        "mean_loss", and of `bttlab.data.metrics.Scores` those fields that the model has labels for; "perplexity" of a
        language model.
    """
    predictions = predict_split(trainer, samples, corpus, split, progress, stop, decode_tags)
    return scores_of(predictions, corpus, split, trainer.config, len(samples))


def decoded(trainer: Trainer, samples: Samples, decoder: TagDecoder, stop: StopSignals | None = None) -> Predictions:
    """Predict with PyTorch and the trainer's parameters, and decode the tags of each utterance together.

    A model without intents has all of an utterance's tags go with each other.
    """
    count, number = len(samples), len(decoder.allowed)
    losses, intents, slots = np.zeros(count, np.float32), np.zeros(count, np.int32), np.zeros_like(samples.slots)
    for batch, intent_logits, slot_logits in logits_of(trainer, samples):
        if stop is not None:
            stop.check()
        chosen = np.full(len(batch), number)
        if intent_logits is not None:
            losses[batch] += _cross_entropy(intent_logits, samples.intents[batch])
            intents[batch] = chosen = intent_logits.argmax(1)
        if slot_logits is not None and (words := slot_logits.shape[1]):
            losses[batch] += _cross_entropy(slot_logits, samples.slots[batch, 1 : words + 1]).mean(1)
            slots[batch, 1 : words + 1] = decoder.decode(slot_logits, chosen)
    return Predictions(losses, intents, slots)


def _cross_entropy(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    most = logits.max(-1, keepdims=True)
    sums = most[..., 0] + np.log(np.exp(logits - most).sum(-1))
    return sums - np.take_along_axis(logits, labels[..., None], -1)[..., 0]


def scores_of(predictions: Predictions, corpus: Corpus, split: str, model, most: int | None = None) -> dict[str, Any]:
    """Score a model's predictions of a split's first `most` utterances (default: all).

    Returns
    -------
    dict
        As `evaluate`.
    """
    part, losses = corpus.split(split)[:most], predictions.losses
    scores = {"mean_loss": float(np.mean(losses, dtype=np.float64)), "utterances": len(part)}
    names = score_names(model.task)
    if not corpus.has_slots:
        names = [name for name in names if "tagging" not in SCORES.get(name, ())]
    if "perplexity" in names:
        words = [min(len(sentence), model.sequence_length - 1) for sentence in part.words]
        return scores | {"perplexity": float(np.exp(np.average(losses, weights=words)))}
    return scores | {name: value for name, value in asdict(score(corpus, part, predictions)).items() if name in names}


def score_names(task: str) -> list[str]:
    """Return the scores that a model's task has."""
    names = [name for name, tasks in SCORES.items() if all(one in task for one in tasks)]
    return ["mean_loss", *(["perplexity"] if task == LANGUAGE_MODEL else names)]


def predict_split(
    trainer: Trainer,
    samples: Samples,
    corpus: Corpus,
    split: str,
    progress: ProgressBar,
    stop: StopSignals | None = None,
    decode_tags: bool = False,
) -> Predictions:
    """Predict a split, once. Parameters and errors are those of `evaluate`."""
    progress.begin(f"{split} split", len(samples))
    try:
        if decode_tags and "tagging" in trainer.config.task:
            decoder = TagDecoder(corpus.slot_labels, corpus.intent_labels, corpus.train)
            predictions = decoded(trainer, samples, decoder, stop)
            progress.advance(predictions.losses)
            return predictions
        parts = []
        for part in chunks(0, len(samples)):
            parts.append(trainer.predict(samples[part]))
            progress.advance(parts[-1].losses)
            if stop is not None:
                stop.check()
        return joined(parts)
    finally:
        progress.end()


def joined(parts: Sequence[Predictions]) -> Predictions:
    """Return the predictions of several parts of a split as one."""
    columns = ([getattr(part, name) for part in parts] for name in ("losses", "intents", "slots"))
    return Predictions(*map(np.concatenate, columns))


def scores_in_words(scores: dict[str, Any]) -> str:
    words = {"intent_accuracy": "intent accuracy", "slot_f1": "slot F1", "frame_accuracy": "frame accuracy"}
    parts = [f"{word} {100 * scores[name]:.1f} %" for name, word in words.items() if name in scores]
    parts += [f"perplexity {scores['perplexity']:.2f}"] if "perplexity" in scores else []
    return ", ".join([*parts, f"mean loss {scores['mean_loss']:.3f}"])


def counted(number: int, noun: str) -> str:
    """Return "1 epoch", "2 epochs"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
