"""Whether an answer is right: said in a notebook, counted by nbgrader."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bttlab.errors import BttlabError

NOT_DONE = "Not done yet: write your answer into the cell above, run it, and run this cell again."
Rule = Callable[..., str | bool]


class NotRight(BttlabError):
    """An answer that nbgrader gives no points for."""


class NotDone(Exception):
    """A function that a student has not written yet returns nothing."""


@dataclass(frozen=True)
class Exercise:
    """What is asked for by a name.

    Attributes
    ----------
    rule : callable
        Takes the answer and the notebook's own objects; returns what to say of a right answer, and nothing true of
        another.
    hint : str
        What to say of an answer that is not right.
    hidden : callable, optional
        Takes a function that has passed the rule: whether it passes cases that the student does not see, too.
    """

    rule: Rule
    hint: str
    hidden: Callable[[Any], bool] | None = None


EXERCISES: dict[str, Exercise] = {}


def exercise(name: str, hint: str, hidden: Callable[[Any], bool] | None = None) -> Callable[[Rule], Rule]:
    """Make a function the rule of an exercise; parameters as for `Exercise`."""

    def register(rule: Rule) -> Rule:
        EXERCISES[name] = Exercise(rule, hint, hidden)
        return rule

    return register


def check(name: str, answer: Any, *objects: Any) -> None:
    """Say whether an answer is right, and if it is not, what to try.

    Parameters
    ----------
    name : str
        The exercise: notebook and number, as "03.2".
    answer : object
        None, or a tuple with None in it, as long as the exercise is not done.
    *objects : object
        What the rule looks at: the student's own run, corpus, model.

    Raises
    ------
    NotRight
        If the answer is not right and nbgrader runs the notebook, to grade or to validate it.
    BttlabError
        If there is no such exercise.
    """
    right, words = _judged(name, answer, objects, hidden=False)
    if not right and os.environ.get("NBGRADER_EXECUTION"):
        raise NotRight(words)
    print(words)


def grade(name: str, answer: Any, *objects: Any) -> None:
    """Raise `NotRight` unless the answer is right, in the cases that the student does not see, too.

    Parameters and errors are as for `check`.
    """
    right, words = _judged(name, answer, objects, hidden=True)
    if not right:
        raise NotRight(words)


def _judged(name: str, answer: Any, objects: tuple, hidden: bool) -> tuple[bool, str]:
    if name not in EXERCISES:
        raise BttlabError(f"exercise {name!r}: there are {', '.join(sorted(EXERCISES))}")
    asked = EXERCISES[name]
    if answer is None or (isinstance(answer, tuple) and any(part is None for part in answer)):
        return False, NOT_DONE
    try:
        praise = asked.rule(answer, *objects)
        if praise and (not hidden or asked.hidden is None or asked.hidden(answer)):
            return True, f"Right. {praise}"
    except NotDone:
        return False, NOT_DONE
    except Exception as error:  # a student's function raises what it likes
        if callable(answer) or isinstance(error, BttlabError):
            return False, f"Not yet: {asked.hint} ({type(error).__name__}: {error})"
    return False, f"Not yet: {asked.hint}"
