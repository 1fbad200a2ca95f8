"""What reaches a terminal: text alone, whatever a name, a label or a file's content would have it do."""

import sys
from typing import Any


def printable(text: object, lines: bool = False) -> str:
    """Return text in which every character that a terminal acts upon, or does not show, stands as its escape.

    So do surrogates, which stand for bytes of a name that are no UTF-8, and marks that turn the direction of writing.

    Parameters
    ----------
    text : object
        What `str` makes of it.
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
    """Print one line to stderr, where progress and notes go."""
    print(printable(text), file=sys.stderr, flush=True)


def result(text: Any) -> None:
    """Print a result to stdout: lines, or what rich draws."""
    if isinstance(text, str):
        print(printable(text, lines=True), flush=True)
        return
    from rich.console import Console

    Console().print(_Cleaned(text))


class _Cleaned:
    """What rich draws, with its own colours and nobody else's."""

    def __init__(self, drawn: Any):
        self._drawn = drawn

    def __rich_console__(self, console: Any, options: Any) -> Any:
        from rich.segment import Segment

        for segment in console.render(self._drawn, options):
            text = segment.text if segment.control else printable(segment.text, lines=True)
            yield Segment(text, segment.style, segment.control)
