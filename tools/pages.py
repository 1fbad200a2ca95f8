"""Pages of docs/ with tables that are made from records, between markers."""

from collections.abc import Mapping, Sequence
from statistics import mean, stdev

from bttlab.errors import BttlabError

BENCHMARKS = "benchmarks.json"  # the record beside the page of benchmarks
END = "<!-- end -->"


def begin_of(name: str) -> str:
    """Return the line after which a table stands; `END` is the one before which it ends."""
    return f"<!-- {name} -->"


def filled(text: str, tables: Mapping[str, str], page: str) -> str:
    """Return a page with tables between their markers.

    Parameters
    ----------
    text : str
        The page as it is.
    tables : mapping of str to str
        By the name in the marker.
    page : str
        The page's name, for the error.

    Raises
    ------
    BttlabError
        If a marker is missing.
    """
    for name, table in tables.items():
        begin = begin_of(name)
        head, opened, behind = text.partition(begin)
        _, closed, tail = behind.partition(END)
        if not (opened and closed):
            raise BttlabError(f"{page} has no lines {begin!r} … {END!r}: put them where the tables are to stand")
        text = f"{head}{begin}\n\n{table}\n{END}{tail}"
    return text


def in_per_cent(values: Sequence[float]) -> str:
    """Return the mean of fractions in per cent, of several their standard deviation, of five and more their range."""
    spread = f" ± {100 * stdev(values):.1f}" if len(values) > 1 else ""
    ends = f" ({100 * min(values):.1f} to {100 * max(values):.1f})" if len(values) >= 5 else ""
    return f"{100 * mean(values):.1f}{spread}{ends}"
