"""Print text without characters that control a terminal."""

import sys
from typing import Any


def printable(text: object, lines: bool = False) -> str:
    """Return text with an escape for every character that is not printable.

    Surrogates (bytes that are no UTF-8) and marks of writing direction are escaped, too.

    Parameters
    ----------
    text : object
        Converted by `str`.
    lines : bool
        Whether it may have several lines.
    """
    text = str(text)
    if lines:
        return "\n".join(map(printable, text.split("\n")))
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def say(text: object) -> None:
    """Print a line to stderr, for progress and notes."""
    print(printable(text), file=sys.stderr, flush=True)


def result(text: Any) -> None:
    """Print a result to stdout: text, or a rich renderable."""
    if isinstance(text, str):
        print(printable(text, lines=True), flush=True)
        return
    from rich.console import Console

    Console().print(text)
