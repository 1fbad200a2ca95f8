"""Print to the terminal: notes to stderr, results to stdout."""

import sys
from typing import Any


def say(text: object) -> None:
    """Print a line to stderr, for progress and notes."""
    print(text, file=sys.stderr, flush=True)


def result(text: Any) -> None:
    """Print a result to stdout: text, or a rich renderable. Bytes of names that are not UTF-8 are escaped."""
    if isinstance(text, str):
        print(text.encode(errors="backslashreplace").decode(), flush=True)
        return
    from rich.console import Console

    Console().print(text)
