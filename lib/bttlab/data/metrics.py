"""Scores of joint intent and slot labelling (conlleval chunks, computed by seqeval)."""

import math
from dataclasses import dataclass

import numpy as np

from .corpus import OUTSIDE, PAD, UNK, Corpus, CorpusError, Split


@dataclass(frozen=True)
class Scores:
    """Fractions from 0 to 1 over a split's utterances.

    ``intent_accuracy`` counts correct intents; ``slot_f1`` is the micro F1 over chunks (0 if there are none, NaN
    if the corpus has no slots); ``frame_accuracy`` counts utterances whose intent and tags are all correct.
    """

    utterances: int
    intent_accuracy: float
    slot_f1: float
    frame_accuracy: float


def named(corpus: Corpus, split: Split, predictions) -> tuple[list[str | None], list[list[str]]]:
    """Return the names of predicted labels: an intent for each utterance, and a tag for each of its words.

    `predictions` has ``intents``, integers of shape (n,), and ``slots``, integers of shape (n, sequence_length) in
    which position 0 is [CLS] and position 1 the first word. For PAD, UNK and ids outside the corpus's label list, the
    tag is O; for ids outside the list, the intent is None. Words beyond the model's sequence length have the tag O.
    A subword that continues a word keeps its PAD.

    Raises CorpusError if the number of predictions is not that of the n gold utterances.
    """
    intents, slots = np.asarray(predictions.intents), np.asarray(predictions.slots)
    if len(split) == 0 or intents.shape != (len(split),) or slots.shape[:1] != (len(split),) or slots.ndim != 2:
        raise CorpusError(
            f"{len(split)} utterances, but predicted intents of shape {intents.shape} and slots of shape "
            f"{slots.shape}; each utterance needs one prediction"
        )
    names = [OUTSIDE if label in (PAD, UNK) else label for label in corpus.slot_labels]
    predicted = []
    for row, tags in zip(slots, split.slots, strict=True):
        guess = [_label(names, i) or OUTSIDE for i in row[1 : 1 + len(tags)]]
        guess += [OUTSIDE] * (len(tags) - len(guess))
        predicted.append([PAD if tag == PAD else found for tag, found in zip(tags, guess, strict=True)])
    return [_label(corpus.intent_labels, i) for i in intents], predicted


def score(corpus: Corpus, split: Split, predictions) -> Scores:
    """Compare predictions, as for `named`, with the labels of a split as written in the corpus.

    A prediction for a gold label that is not in the label lists is never correct.
    """
    from seqeval.metrics import f1_score  # here, because it imports scikit-learn, which takes a second

    intents, predicted = named(corpus, split, predictions)
    correct = [guess == gold != UNK for guess, gold in zip(intents, split.intents, strict=True)]
    frames = [ok and guess == tags for ok, guess, tags in zip(correct, predicted, split.slots, strict=True)]
    gold, guesses = labelled_words(split.slots), labelled_words(predicted)
    slots = f1_score(gold, guesses, zero_division=0) if corpus.has_slots else math.nan  # pyright: ignore[reportArgumentType]
    return Scores(
        utterances=len(split),
        intent_accuracy=sum(correct) / len(split),
        slot_f1=float(slots),  # pyright: ignore[reportArgumentType]
        frame_accuracy=sum(frames) / len(split),
    )


def labelled_words(rows: list[list[str]]) -> list[list[str]]:
    """Return tags without those of subwords that continue a word, which are never scored."""
    return [[tag for tag in tags if tag != PAD] for tags in rows]


def _label(labels: list[str], index: int) -> str | None:
    return labels[index] if 0 <= index < len(labels) else None
