"""Scores of joint intent and slot labelling, over chunks as conlleval cuts them."""

from collections.abc import Iterator, Sequence
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
    intents, predicted = named(corpus, split, predictions)
    right = [guess == gold != UNK for guess, gold in zip(intents, split.intents, strict=True)]
    frames = [ok and guess == tags for ok, guess, tags in zip(right, predicted, split.slots, strict=True)]
    return Scores(
        utterances=len(split),
        intent_accuracy=sum(right) / len(split),
        slot_f1=_chunk_f1(split.slots, predicted),
        frame_accuracy=sum(frames) / len(split),
    )


def _chunk_f1(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> float:
    """Return the micro F1 of chunks."""
    wanted, found = (list(map(_chunks, tags)) for tags in (gold, predicted))
    right = sum(len(one & other) for one, other in zip(wanted, found, strict=True))
    if not right:
        return 0.0
    precision, recall = (right / sum(map(len, chunks)) for chunks in (found, wanted))
    return 2 * precision * recall / (precision + recall)


def _chunks(tags: Sequence[str]) -> set[tuple[int, int, str]]:
    """Return (begin, end, type) of each chunk of BIO tags; an I- that continues no chunk of its type begins one."""
    chunks, begin = set(), 0
    for i, (before, tag) in enumerate(zip([OUTSIDE, *tags], [*tags, OUTSIDE], strict=True)):
        if tag[0] == "I" and before != OUTSIDE and before[2:] == tag[2:]:
            continue
        if before != OUTSIDE:
            chunks.add((begin, i, before[2:]))
        begin = i
    return chunks


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
