"""Print to the terminal: notes to stderr, results to stdout. What a terminal would obey is printed as its code.

Names and texts in files may be somebody else's: control characters in them would set titles, clear the screen or fill
the clipboard. A line's end in a name would forge another line: what stands inside a line is written by `one_line`.
"""

import re
import sys
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

# ASCII's but tab and newline, C1, marks that change the direction of text, and bytes of names that are not UTF-8
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Return a text with control characters as their codes, such as \\u001b, as JSON has them."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def one_line(text: object) -> str:
    """Return a text as it may stand inside a line: ends of lines and tabs are codes, too."""
    return printable(str(text)).replace("\n", r"\u000a").replace("\t", r"\u0009")


def say(text: object) -> None:
    """Print a line to stderr, for progress and notes."""
    print(one_line(text), file=sys.stderr, flush=True)


def result(text: Any, file: TextIO | None = None) -> None:
    """Print a result, text or a rich renderable, to stdout or another stream."""
    if isinstance(text, str):
        print(printable(text), file=file, flush=True)
        return
    from rich.console import Console

    Console(file=file).print(_Printable(text))


class _Printable:
    """A renderable without control characters but those of its style."""

    def __init__(self, renderable: "RenderableType"):
        self._renderable = renderable

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        for segment in console.render(self._renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))
