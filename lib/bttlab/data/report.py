"""Scores by intent and by slot type, and which intents are taken for which."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .corpus import UNK, Corpus, Split
from .metrics import chunks, named, precision_recall_f1, score

SEPARATOR = "#"  # between the intents of an utterance that has several, as in ATIS


@dataclass(frozen=True)
class LabelScores:
    """Precision, recall and F1 (0 to 1) of one intent, or of the chunks of one slot type, and how many there are."""

    label: str
    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True)
class Report:
    """Scores of a split by label, the most frequent labels first.

    An utterance with several intents has one label, such as atis_flight#atis_airfare. `intent_accuracy` takes it for a
    class of its own, as JointBERT (arXiv 1902.10909) and the slot-gated model (Goo et al., NAACL 2018) do. Liu and Lane
    (arXiv 1609.01454) count a prediction of any of the labels as correct: `intent_accuracy_any`.
    """

    # intents, slots: empty where the model, or the corpus, has no such labels
    intents: list[LabelScores]
    slots: list[LabelScores]
    labels: list[str]  # intents in the split or among the predictions
    confusion: list[list[int]]  # row: intent in the corpus; column: predicted intent, in the order of `labels`
    intent_accuracy: float | None  # None of a model without intents
    # accuracy if one of several intents is enough; None where no utterance has several
    intent_accuracy_any: float | None

    def mistakes(self) -> list[tuple[str, str, int]]:
        """Return (intent, predicted intent, utterances) of every kind of mistake, the most frequent first."""
        pairs = np.argwhere(np.array(self.confusion, int).reshape(len(self.labels), -1) > 0).tolist()
        found = [(self.labels[i], self.labels[k], self.confusion[i][k]) for i, k in pairs if i != k]
        return sorted(found, key=lambda mistake: -mistake[2])

    def __str__(self) -> str:
        """Return tables of the scores and a line for each kind of mistake."""
        width = max((len(one.label) for one in (*self.intents, *self.slots)), default=5)
        lines = []
        for title, rows in (("intent", self.intents), ("slot", self.slots)):
            if rows:
                lines.append(f"{title:{width}}  precision  recall     F1  number")
            for one in rows:
                values = f"{100 * one.precision:9.1f}  {100 * one.recall:6.1f}  {100 * one.f1:5.1f}  {one.support:6,}"
                lines.append(f"{one.label:{width}}  {values}")
        lines += [f"{gold} taken for {guess}: {number}" for gold, guess, number in self.mistakes()]
        if self.intent_accuracy is not None and self.intent_accuracy_any is not None:
            lines.append(
                f"intent accuracy {100 * self.intent_accuracy:.1f} % with labels such as a#b as a class of their own, "
                f"{100 * self.intent_accuracy_any:.1f} % if one of several intents is enough"
            )
        return "\n".join(lines)


def report(corpus: Corpus, split: Split, predictions: Any, task: str = "classification and tagging") -> Report:
    """Return the scores by label of a model for this task; the rest is as for `bttlab.data.metrics.score`."""
    intents, tags = named(corpus, split, predictions)
    by_intent, labels, confusion, accuracy, accuracy_any = [], [], [], None, None
    if "classification" in task:
        guesses = [guess or UNK for guess in intents]
        pairs = Counter(zip(split.intents, guesses, strict=True))
        by_intent = _by_label(split.intents, guesses, (gold for gold, guess in pairs.elements() if gold == guess))
        labels = [one.label for one in by_intent]
        confusion = [[pairs[gold, guess] for guess in labels] for gold in labels]
        accuracy = score(corpus, split, predictions).intent_accuracy
        if any(SEPARATOR in intent for intent in split.intents):
            right = [UNK != a and bool({*a.split(SEPARATOR)} & {*b.split(SEPARATOR)}) for a, b in pairs.elements()]
            accuracy_any = sum(right) / len(split)
    by_slot = []
    if "tagging" in task and corpus.has_slots:
        gold, found = chunks(split.slots), chunks(tags)
        by_slot = _by_label(*([slot for *_, slot in some] for some in (gold, found, gold & found)))
    return Report(by_intent, by_slot, labels, confusion, accuracy, accuracy_any)


def _by_label(gold: Iterable[str], predicted: Iterable[str], correct: Iterable[str]) -> list[LabelScores]:
    """Return the scores of each label in the corpus or among the predictions, the most frequent first."""
    wanted, guessed, right = Counter(gold), Counter(predicted), Counter(correct)
    rows = [
        LabelScores(label, *precision_recall_f1(right[label], guessed[label], wanted[label]), wanted[label])
        for label in wanted | guessed
    ]
    return sorted(rows, key=lambda one: (-one.support, one.label))
