"""Compare answers: numbers to some digits, letters, functions."""

import math
import re
from collections.abc import Callable
from copy import deepcopy
from numbers import Real
from typing import Any

from bttlab.model import ModelConfig
from bttlab.teaching.exercises.check import NotDone, require

# The paper's linear layer
MODES = ModelConfig.linear_out_modes, ModelConfig.linear_in_modes
RANK = ModelConfig.linear_rank


def near(answer: Any, expected: float, relative: float = 1e-3) -> bool:
    """Return whether an answer is a number, and this one up to a relative error."""
    is_number = isinstance(answer, Real) and not isinstance(answer, bool)
    return is_number and math.isclose(answer, expected, rel_tol=relative)


def require_number(answer: Any, expected: float, relative: float = 1e-3, place: str = "") -> None:
    """Raise `Wrong` unless an answer is this number up to a relative error; the message says which way it is off.

    An answer of several numbers has a `place` for each, such as " at 50 MHz".
    """
    require(
        isinstance(answer, Real) and not isinstance(answer, bool),
        f"you gave {answer!r:.60}{place}, which is not a number",
    )
    side = "small" if answer < expected else "large"
    is_nearly = relative and near(answer, expected, max(0.03, 3 * relative))
    digits = "nearly right: give more digits" if is_nearly else f"too {side}"
    require(near(answer, expected, relative), f"you gave {answer:,.6g}{place}, which is {digits}")


def is_whole(answer: Any) -> bool:
    """Return whether an answer is a number without a fraction, above 0."""
    return answer > 0 and near(answer, int(answer), 0.0)


def is_letter(answer: Any, letter: str) -> bool:
    """Return whether an answer is a letter: "b", "(B)", " b) " are the same."""
    return bool(re.fullmatch(rf"\(?\s*{letter}\s*\)?\.?", answer.strip(), re.IGNORECASE))


def called(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a student's function returns for copies of the arguments, which it may change."""
    return done(function(*deepcopy(arguments)))


def done(returned: Any) -> Any:
    """Return what a student's function has returned; `NotDone` if that is nothing."""
    if returned is None:
        raise NotDone
    return returned
