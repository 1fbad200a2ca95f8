"""Fill tables made from records into pages of docs/, between markers."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev

from bttlab.util.errors import BttlabError
from bttlab.util.files import write_file
from bttlab.util.terminal import say

BENCHMARKS = "benchmarks.json"  # the record of the page of benchmarks, in the same folder
END = "<!-- end -->"
WIDTH = 130  # of a line of prose


def begin_of(name: str) -> str:
    return f"<!-- {name} -->"


def write_tables(page: Path, fill: Callable[[str], str], description: str, arguments: Sequence[str] | None) -> int:
    """Write a page again with its tables, as a command without options; return the exit code."""
    argparse.ArgumentParser(description=description.split("\n")[0]).parse_args(arguments)
    try:
        write_file(page, fill(page.read_text(encoding="utf-8")))
    except (BttlabError, OSError) as error:
        say(error)
        return 2
    return 0


def filled(text: str, tables: Mapping[str, str], page: str) -> str:
    """Return a page with tables between the markers of their names."""
    for name, table in tables.items():
        begin = begin_of(name)
        head, opened, rest = text.partition(begin)
        _, closed, tail = rest.partition(END)
        if not (opened and closed):
            raise BttlabError(f"{page} has no lines {begin!r} … {END!r}: add them where the table belongs")
        text = f"{head}{begin}\n\n{table}\n{END}{tail}"
    return text


def in_per_cent(values: Sequence[float]) -> str:
    """Return the mean of fractions in per cent, with standard deviation if several, and range if five or more."""
    spread = f" ± {100 * stdev(values):.1f}" if len(values) > 1 else ""
    ends = f" ({100 * min(values):.1f} to {100 * max(values):.1f})" if len(values) >= 5 else ""
    return f"{100 * mean(values):.1f}{spread}{ends}"


def markdown(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table whose columns but the first have numbers."""
    lines = [headers, ["---", *["---:"] * (len(headers) - 1)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
