"""Scores of joint intent and slot labelling (conlleval chunks, computed by seqeval)."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .corpus import OUTSIDE, PAD, UNK, Corpus, CorpusError, Split


@dataclass(frozen=True)
class Scores:
    """Fractions from 0 to 1 over a split's utterances.

    ``intent_accuracy`` counts right intents; ``slot_f1`` is the micro F1 over chunks (0 where there are none);
    ``frame_accuracy`` counts utterances whose intent and tags are all right.
    """

    utterances: int
    intent_accuracy: float
    slot_f1: float
    frame_accuracy: float


def named(corpus: Corpus, split: Split, predictions) -> tuple[list[str | None], list[list[str]]]:
    """Return predictions by name: an intent for each utterance, and a tag for each of its words.

    Predicted PAD, UNK and ids beyond the corpus's label list are the tag O for a word; an intent beyond the list is
    None. Words that were cut have the tag O.

    Parameters
    ----------
    corpus : Corpus
        Its label lists name the predicted ids.
    split : Split
        The n gold utterances, not cut.
    predictions : Predictions
        ``intents``, integers of shape (n,), and ``slots``, integers of shape (n, sequence_length) in which position 0
        is [CLS] and position 1 the first word.

    Raises
    ------
    CorpusError
        If there is not one prediction for each utterance.
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
        predicted.append(guess + [OUTSIDE] * (len(tags) - len(guess)))
    return [_label(corpus.intent_labels, i) for i in intents], predicted


def score(corpus: Corpus, split: Split, predictions) -> Scores:
    """Compare predictions with a split as it is written in the corpus.

    Gold labels that are in no label list are never right; predictions count as `named` says.

    Parameters
    ----------
    corpus, split, predictions
        As for `named`.

    Raises
    ------
    CorpusError
        If there is not one prediction for each utterance.
    """
    from seqeval.metrics import f1_score  # here: it imports scikit-learn, which takes a second

    intents, predicted = named(corpus, split, predictions)
    right = [guess == gold != UNK for guess, gold in zip(intents, split.intents, strict=True)]
    frames = [ok and guess == tags for ok, guess, tags in zip(right, predicted, split.slots, strict=True)]
    return Scores(
        utterances=len(split),
        intent_accuracy=sum(right) / len(split),
        slot_f1=float(f1_score(split.slots, predicted, zero_division=0)),
        frame_accuracy=sum(frames) / len(split),
    )


def _label(labels: list[str], index: int) -> str | None:
    return labels[index] if 0 <= index < len(labels) else None


def conlleval_lines(corpus: Corpus, split: Split, predictions) -> Iterator[str]:
    """Yield a line for each word, and an empty one after each utterance.

    Columns, divided by spaces: word, intent, predicted intent, tag, predicted tag. conlleval takes the last two.

    Parameters
    ----------
    corpus, split, predictions
        As for `named`.
    """
    intents, predicted = named(corpus, split, predictions)
    for words, intent, guess, tags, guesses in zip(
        split.words, split.intents, intents, split.slots, predicted, strict=True
    ):
        for word, tag, guessed in zip(words, tags, guesses, strict=True):
            yield f"{word} {intent} {guess or UNK} {tag} {guessed}"
        yield ""
