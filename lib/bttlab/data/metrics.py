"""Scores of joint intent and slot labelling, by the rules of the field (conlleval chunks)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .corpus import OUTSIDE, PAD, UNK, Corpus, CorpusError, Split
from .tags import repaired


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


def named(
    corpus: Corpus, split: Split, predictions, repair_tags: bool = False
) -> tuple[list[str | None], list[list[str]]]:
    """Return predictions by name, as they are scored: an intent for each utterance, and a tag for each of its words.

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
    repair_tags : bool
        Whether predicted tags are made well-formed (`bttlab.data.tags.repaired`) before they are compared.

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
    known, predicted = frozenset(names), []
    for row, tags in zip(slots, split.slots, strict=True):
        guess = [_label(names, i) or OUTSIDE for i in row[1 : 1 + len(tags)]]
        if repair_tags:
            guess = repaired(guess, known)
        predicted.append(guess + [OUTSIDE] * (len(tags) - len(guess)))
    return [_label(corpus.intent_labels, i) for i in intents], predicted


def score(corpus: Corpus, split: Split, predictions, repair_tags: bool = False) -> Scores:
    """Compare predictions with a split as it is written in the corpus.

    Gold labels that are in no label list are never right; predictions count as `named` says.

    Parameters
    ----------
    corpus, split, predictions, repair_tags
        As for `named`.

    Raises
    ------
    CorpusError
        If there is not one prediction for each utterance.
    """
    intents, predicted = named(corpus, split, predictions, repair_tags)
    right = [guess == gold != UNK for guess, gold in zip(intents, split.intents, strict=True)]
    frames = [ok and guess == tags for ok, guess, tags in zip(right, predicted, split.slots, strict=True)]
    return Scores(
        utterances=len(split),
        intent_accuracy=sum(right) / len(split),
        slot_f1=f1(split.slots, predicted),
        frame_accuracy=sum(frames) / len(split),
    )


def chunks(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """Return the chunks of an utterance's tags: type, first and last word.

    As conlleval has them: an I- that no tag of its type is before begins a chunk, too.
    """
    found, first = set(), 0
    for place, (before, tag, after) in enumerate(zip([OUTSIDE, *tags], tags, [*tags[1:], OUTSIDE], strict=False)):
        kind = tag[2:]
        if tag[0] == "B" or before[2:] != kind:
            first = place
        if tag != OUTSIDE and after != f"I-{kind}":
            found.add((kind, first, place))
    return found


def f1(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> float:
    """Return the micro F1 over the chunks of utterances, 0 where no chunk is right.

    Parameters
    ----------
    gold, predicted : sequence of sequence of str
        The tags of each utterance: O, B-… and I-….
    """
    wanted, found = ([chunks(tags) for tags in utterances] for utterances in (gold, predicted))
    right = sum(len(one & other) for one, other in zip(wanted, found, strict=True))
    if not right:
        return 0.0
    precision, recall = right / sum(map(len, found)), right / sum(map(len, wanted))
    return 2 * precision * recall / (precision + recall)


def _label(labels: list[str], index: int) -> str | None:
    return labels[index] if 0 <= index < len(labels) else None


def conlleval_lines(corpus: Corpus, split: Split, predictions, repair_tags: bool = False) -> Iterator[str]:
    """Yield a line for each word, and an empty one after each utterance.

    Columns, divided by spaces: word, intent, predicted intent, tag, predicted tag. conlleval takes the last two.

    Parameters
    ----------
    corpus, split, predictions, repair_tags
        As for `named`.
    """
    intents, predicted = named(corpus, split, predictions, repair_tags)
    for words, intent, guess, tags, guesses in zip(
        split.words, split.intents, intents, split.slots, predicted, strict=True
    ):
        for word, tag, guessed in zip(words, tags, guesses, strict=True):
            yield f"{word} {intent} {guess or UNK} {tag} {guessed}"
        yield ""
