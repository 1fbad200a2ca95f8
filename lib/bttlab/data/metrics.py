"""Scores of joint intent and slot labelling; chunks are those of conlleval."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .corpus import OUTSIDE, PAD, UNK, Corpus, CorpusError, Split
from .spans import slots_of


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
    intents, predicted = named(corpus, split, predictions)
    correct = [guess == gold != UNK for guess, gold in zip(intents, split.intents, strict=True)]
    frames = [ok and guess == tags for ok, guess, tags in zip(correct, predicted, split.slots, strict=True)]
    gold, guesses = labelled_words(split.slots), labelled_words(predicted)
    return Scores(
        utterances=len(split),
        intent_accuracy=sum(correct) / len(split),
        slot_f1=chunk_f1(gold, guesses) if corpus.has_slots else math.nan,
        frame_accuracy=sum(frames) / len(split),
    )


def chunk_f1(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> float:
    """Return the micro F1 over the chunks of utterances in BIO tags; 0 if there are none.

    It is seqeval's `f1_score`, to the bit, without seqeval's import of scikit-learn, which takes as long as PyTorch's.
    """
    right = wanted = found = 0
    for tags, guesses in zip(gold, predicted, strict=True):
        chunks, guessed = _chunks(tags), _chunks(guesses)
        right, wanted, found = right + len(chunks & guessed), wanted + len(chunks), found + len(guessed)
    precision, recall = right / max(found, 1), right / max(wanted, 1)
    return 2 * precision * recall / (precision + recall) if right else 0.0


def _chunks(tags: Sequence[str]) -> set[tuple[int, int, str]]:
    return {(first, end, slot) for first, end, slot in slots_of(tags) if tags[first] != OUTSIDE}


def labelled_words(rows: list[list[str]]) -> list[list[str]]:
    """Return tags without those of subwords that continue a word, which are never scored."""
    return [[tag for tag in tags if tag != PAD] for tags in rows]


def _label(labels: list[str], index: int) -> str | None:
    return labels[index] if 0 <= index < len(labels) else None
