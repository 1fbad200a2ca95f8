"""Check an answer: show the result in a notebook, raise under nbgrader."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from IPython.display import display

from bttlab.teaching.exercises.capture import caught_stderr
from bttlab.teaching.notebooks import FOLDER
from bttlab.util.errors import BttlabError

NOT_DONE = "Not done yet: write your answer into the cell above, run it, and run this cell again."
Rule = Callable[..., str]


class NotRight(BttlabError):
    """An answer that gets no points from nbgrader."""


class NotDone(Exception):
    """A student's function returned nothing: it is not written yet."""


class Wrong(Exception):
    """An answer that failed a condition; the message names the value and the condition."""


def require(condition: object, message: str) -> None:
    """Raise `Wrong` with a message for the student unless a condition holds."""
    if not condition:
        raise Wrong(message)


@dataclass(frozen=True)
class Exercise:
    """A rule, and the hint for answers that fail it; both callables raise `Wrong` with what they found."""

    rule: Rule  # takes the answer and objects of the notebook; returns a comment on a right answer
    hint: str
    hidden: Callable[[Any], None] | None = None  # takes a function that has passed; has cases that students do not see


EXERCISES: dict[str, Exercise] = {}


def exercise(name: str, hint: str, hidden: Callable[[Any], None] | None = None) -> Callable[[Rule], Rule]:
    """Make a function the rule of an exercise; parameters as for `Exercise`."""

    def register(rule: Rule) -> Rule:
        EXERCISES[name] = Exercise(rule, hint, hidden)
        return rule

    return register


_right: dict[str, bool] = {}  # exercises that this kernel has checked, and whether the last answer was right


class Verdict(str):
    """What a check shows: a mark, what was found, and the hint on request."""

    def _repr_html_(self) -> str:
        found, _, hint = self.partition(" Hint: ")
        right = found.startswith("Right.")
        head, end, rest = found.partition("." if right else ":")
        mark, colour = ("✔", "#009E73") if right else ("✘", "#D55E00")
        more = f"<details><summary>Show a hint</summary>{escape(hint)}</details>" if hint else ""
        head = f"<span style='color:{colour};font-weight:600'>{mark} {escape(head)}{end}</span>"
        return f"<div role='status'>{head}{escape(rest)}{more}</div>"

    __repr__ = str.__str__


def check(name: str, answer: Any, *objects: Any) -> None:
    """Show whether an answer is right; if it is not, show what was found and, on request, a hint.

    What the answer writes to stderr, warnings included, is printed as text of the check.

    Parameters
    ----------
    name : str
        Notebook and number, as "03.2".
    answer : object
        None, or a tuple with None in it, means "not done yet".
    *objects : object
        Objects of the notebook that the rule needs: run, corpus, model.

    Raises
    ------
    NotRight
        If the answer is not right and nbgrader runs the notebook.
    BttlabError
        If there is no such exercise.
    """
    right, words, written = _judged(name, answer, objects, hidden=False)
    _right[name] = right
    if not right and os.environ.get("NBGRADER_EXECUTION"):
        _print_written(written)
        raise NotRight(words)
    display(Verdict(words))
    _print_written(written)


def show_points(notebook: str) -> None:
    """Print the points that the answers checked so far have; of a lecturer's own checks, that they are not counted.

    Parameters
    ----------
    notebook : str
        Its number, such as "03". Points are those of this notebook in the current folder, where it has been saved as it
        was handed out: a lecturer may have changed them. Without it they are those of the library.
    """
    points = points_of(notebook)
    others = {name: value for name, value in points.items() if name not in EXERCISES}
    got = sum(value for name, value in points.items() if _right.get(name))
    left = [name for name in points if name not in others and not _right.get(name)]
    line = f"{got:g} of {sum(points.values()):g} points"
    if left:
        line += f"; not right yet: {', '.join(left)}"
    if others:
        line += f"; not counted here: {', '.join(others)} ({sum(others.values()):g})"
    print(line)


def points_of(notebook: str) -> dict[str, float]:
    """Return the points of a notebook's exercises, by name, as nbgrader counts them."""
    found = {}
    for path in FOLDER.glob(f"{notebook}_*.ipynb"):
        found |= _points_in(Path(path.name)) or _points_in(path)
    return found


def _points_in(notebook: Path) -> dict[str, float]:
    """Return the points of a file's graded cells; none of a file that is not there or is not a notebook."""
    try:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        marks = [cell["metadata"].get("nbgrader", {}) for cell in cells]
        return {_name_of(mark["grade_id"]): mark["points"] for mark in marks if mark.get("grade")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _name_of(grade_id: str) -> str:
    return grade_id.removeprefix("check-").replace("-", ".")


def grade(name: str, answer: Any, *objects: Any) -> None:
    """Refuse an answer that is not right, also in the cases that students do not see.

    Parameters
    ----------
    name : str
        Notebook and number, as "03.2".
    answer : object
        As for `check`.
    *objects : object
        As for `check`.

    Raises
    ------
    NotRight
        If the answer is not right.
    BttlabError
        If there is no such exercise.
    """
    right, words, written = _judged(name, answer, objects, hidden=True)
    if not right:  # `check` prints what a right answer writes
        _print_written(written)
        raise NotRight(words)


def _print_written(text: str) -> None:
    if text:
        print(f"Your answer wrote to stderr, which costs no points:\n{text}")


def _judged(name: str, answer: Any, objects: tuple, hidden: bool) -> tuple[bool, str, str]:
    """Return whether an answer is right, what to say of it, and what was written to stderr meanwhile."""
    with caught_stderr() as text:
        return *_verdict(name, answer, objects, hidden), text()


def _verdict(name: str, answer: Any, objects: tuple, hidden: bool) -> tuple[bool, str]:
    if name not in EXERCISES:
        raise BttlabError(f"exercise {name!r}: there are {', '.join(sorted(EXERCISES))}")
    asked = EXERCISES[name]
    if answer is None or (isinstance(answer, tuple) and any(part is None for part in answer)):
        return False, NOT_DONE
    try:
        praise = asked.rule(answer, *objects)
        if hidden and asked.hidden is not None:
            asked.hidden(answer)
        return True, f"Right. {praise}"
    except NotDone:
        return False, NOT_DONE
    except Wrong as found:
        why = str(found)
    except Exception as error:  # a student's function raises what it likes; other answers have the wrong type
        is_theirs = callable(answer) or isinstance(error, BttlabError)
        why = f"{type(error).__name__}: {error}" if is_theirs else f"you gave {answer!r:.60}, which is no such answer"
    return False, f"Not yet: {why}. Hint: {asked.hint}"
