"""Scores of a trained model: which of them a model has, and their words. Imports nothing slow."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from bttlab.model.choices import LANGUAGE_MODEL


class Score(NamedTuple):
    title: str
    tasks: tuple[str, ...]  # that a model has to have for it
    form: str = ".1%"
    more_is_better: bool = True

    def in_words(self, value: float) -> str:
        return f"{self.title} {value:{self.form}}".replace("%", " %")


SCORES = {
    "intent_accuracy": Score("intent accuracy", ("classification",)),
    "slot_f1": Score("slot F1", ("tagging",)),
    "frame_accuracy": Score("frame accuracy", ("classification", "tagging")),
    "perplexity": Score("perplexity", (LANGUAGE_MODEL,), ".2f", False),
    "mean_loss": Score("mean loss", (), ".3f", False),
}


def score_names(task: str) -> list[str]:
    """Return the scores that a model's task has; perplexity is that of a language model alone."""
    names = [name for name, score in SCORES.items() if all(needed in task for needed in score.tasks)]
    return [name for name in names if name != "perplexity" or task == LANGUAGE_MODEL]


def tasks_of(name: str) -> tuple[str, ...]:
    """Return the tasks that a model has to have for a score; none for other figures of a split."""
    return SCORES[name].tasks if name in SCORES else ()


def is_better(scores: Mapping[str, Any], earlier: Mapping[str, Any]) -> bool:
    """Return whether scores of a split are better than earlier ones, by the score of the most tasks that they have.

    Where it is equal, as frame accuracy at first, the other scores of a task decide, in their order.
    """
    most, *others = sorted((name for name in SCORES if name in scores), key=lambda name: -len(SCORES[name].tasks))
    if earlier.get(most) is None:
        return True
    for name in (most, *(name for name in others if SCORES[name].tasks and earlier.get(name) is not None)):
        if scores[name] != earlier[name]:
            return (scores[name] > earlier[name]) == SCORES[name].more_is_better
    return False


def scores_in_words(scores: Mapping[str, Any]) -> str:
    return ", ".join(score.in_words(scores[name]) for name, score in SCORES.items() if name in scores)


def counted(number: int, noun: str) -> str:
    """Return "1 epoch", "2 epochs"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
