"""The check cells of the exercises."""

from collections.abc import Callable
from typing import Any


def check(answer: Any, rule: Callable[[Any], bool], right: str, why_not: str) -> None:
    """Say whether an answer is right, and if it is not, why.

    Parameters
    ----------
    answer : object
        None as long as the exercise is not done.
    rule : callable
        Whether an answer is right. An answer that it cannot even take is not.
    right, why_not : str
        What to say.
    """
    if answer is None:
        print("Not done yet: put your answer in place of None and run the cell again.")
        return
    try:
        holds = bool(rule(answer))
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError):
        holds = False
    print(f"Right. {right}" if holds else f"Not yet: {why_not}")
