"""Scores of a trained model on a split."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from bttlab.data import Corpus, Samples
from bttlab.data.metrics import score
from bttlab.data.tags import TagDecoder
from bttlab.model import (
    LANGUAGE_MODEL,
    Predictions,
    Trainer,
)
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

    Parameters
    ----------
    decode_tags : bool
        As in `RunSettings`.

    Returns
    -------
    dict
        "mean_loss", and of `bttlab.data.metrics.Scores` those fields that the model has labels for; "perplexity" of a
        language model.

    Raises
    ------
    StopRequested
        Between two chunks, if the user asked for it.
    """
    predictions = predict_split(trainer, samples, corpus, split, progress, stop, decode_tags)
    return scores_of(predictions, corpus, split, trainer.config, len(samples))


def decoded(trainer: Trainer, samples: Samples, predictions: Predictions, decoder: TagDecoder) -> Predictions:
    """Return predictions with decoded tags, from logits that PyTorch computes with the trainer's parameters.

    A model without tags has nothing to decode; without intents, all of an utterance's tags go with each other.
    """
    if "tagging" not in trainer.config.task:
        return predictions
    intents = predictions.intents
    if "classification" not in trainer.config.task:
        intents = np.full_like(intents, len(decoder.allowed))
    slots = np.zeros_like(predictions.slots)
    for batch, _, logits in logits_of(trainer, samples):
        slots[batch, 1 : logits.shape[1] + 1] = decoder.decode(logits, intents[batch])
    return replace(predictions, slots=slots)


def scores_of(predictions: Predictions, corpus: Corpus, split: str, model, most: int | None = None) -> dict[str, Any]:
    """Score a model's predictions of a split's first `most` utterances (default: all).

    Parameters
    ----------
    model : ModelConfig or ModuleConfig

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
    predictions = joined(parts)
    if not decode_tags:
        return predictions
    return decoded(trainer, samples, predictions, TagDecoder(corpus.slot_labels, corpus.intent_labels, corpus.train))


def joined(parts: Sequence[Predictions]) -> Predictions:
    """Return the predictions of several parts of a split as one."""
    columns = ([getattr(part, name) for part in parts] for name in ("losses", "intents", "slots"))
    return Predictions(*map(np.concatenate, columns))


def describe(scores: dict[str, Any]) -> str:
    """Return scores as a phrase."""
    words = {"intent_accuracy": "intent accuracy", "slot_f1": "slot F1", "frame_accuracy": "frame accuracy"}
    parts = [f"{word} {100 * scores[name]:.1f} %" for name, word in words.items() if name in scores]
    parts += [f"perplexity {scores['perplexity']:.2f}"] if "perplexity" in scores else []
    return ", ".join([*parts, f"mean loss {scores['mean_loss']:.3f}"])


def counted(number: int, noun: str) -> str:
    """Return "1 epoch", "2 epochs"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
