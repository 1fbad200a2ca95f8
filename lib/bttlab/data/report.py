"""Scores by intent and by slot type, and which intents are taken for which."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from bttlab.util.terminal import one_line

from .corpus import UNK, Corpus, Split
from .label_names import split_intents
from .metrics import labelled_words, named, score


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
        pairs = np.argwhere(np.array(self.confusion, int).reshape(len(self.labels), len(self.labels)) > 0).tolist()
        found = [(self.labels[i], self.labels[k], self.confusion[i][k]) for i, k in pairs if i != k]
        return sorted(found, key=lambda mistake: -mistake[2])

    def __str__(self) -> str:
        width = max((len(row.label) for row in (*self.intents, *self.slots)), default=5)
        lines = []
        for title, rows in (("intent", self.intents), ("slot", self.slots)):
            if rows:
                lines.append(f"{title:{width}}  precision  recall     F1  number")
            for row in rows:
                values = f"{100 * row.precision:9.1f}  {100 * row.recall:6.1f}  {100 * row.f1:5.1f}  {row.support:6,}"
                lines.append(f"{row.label:{width}}  {values}")
        lines += [f"{gold} taken for {guess}: {number}" for gold, guess, number in self.mistakes()]
        if self.intent_accuracy is not None and self.intent_accuracy_any is not None:
            lines.append(
                f"intent accuracy {100 * self.intent_accuracy:.1f} % with labels such as a#b as a class of their own, "
                f"{100 * self.intent_accuracy_any:.1f} % if one of several intents is enough"
            )
        return "\n".join(map(one_line, lines))


def report(corpus: Corpus, split: Split, predictions: Any, task: str = "classification and tagging") -> Report:
    """Return the scores by label of a model for this task; the rest is as for `bttlab.data.metrics.score`."""
    from seqeval.metrics import classification_report  # here, because it imports scikit-learn, which takes a second
    from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

    intents, tags = named(corpus, split, predictions)
    by_intent, labels, confusion, accuracy, accuracy_any = [], [], np.zeros((0, 0), int), None, None
    if "classification" in task:
        guesses = [guess or UNK for guess in intents]
        counts = {label: split.intents.count(label) for label in {*split.intents, *guesses}}
        labels = sorted(counts, key=lambda label: (-counts[label], label))
        # Types that scikit-learn and seqeval do not declare.
        columns: Any = precision_recall_fscore_support(split.intents, guesses, labels=labels, zero_division=0)  # pyright: ignore[reportArgumentType]
        by_intent = [_row(label, *values) for label, *values in zip(labels, *columns, strict=True)]
        confusion = confusion_matrix(split.intents, guesses, labels=labels)
        accuracy = score(corpus, split, predictions).intent_accuracy
        if any(len(split_intents(intent)) > 1 for intent in split.intents):
            pairs = zip(split.intents, guesses, strict=True)
            right = [UNK != gold and {*split_intents(gold)} & {*split_intents(guess)} for gold, guess in pairs]
            accuracy_any = sum(map(bool, right)) / len(split)
    by_slot = []
    if "tagging" in task and corpus.has_slots:
        gold, guesses = labelled_words(split.slots), labelled_words(tags)
        rows: Any = classification_report(gold, guesses, output_dict=True, zero_division=0)  # pyright: ignore[reportArgumentType]
        names = ("precision", "recall", "f1-score", "support")
        by_slot = [
            _row(label, *(row[name] for name in names)) for label, row in rows.items() if not label.endswith(" avg")
        ]
        by_slot.sort(key=lambda row: (-row.support, row.label))
    return Report(by_intent, by_slot, labels, confusion.tolist(), accuracy, accuracy_any)


def _row(label: str, precision: float, recall: float, f1: float, support: int) -> LabelScores:
    return LabelScores(label, float(precision), float(recall), float(f1), int(support))
