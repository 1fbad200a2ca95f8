"""Rows that a probe measures with other people's packages, printed as JSON: python tools/others/PROBE.py.

A probe imports nothing of this project: tools/others.py gives it an environment of its own with the pinned packages.
"""

import json
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version

Cells = dict[str, object]
ROWS: list[tuple[str, str, Callable[[], Cells]]] = []


def row(package: str, name: str) -> Callable:
    """Make a function the row of a package: it returns the row's cells."""

    def register(measure: Callable[[], Cells]) -> Callable[[], Cells]:
        ROWS.append((package, name, measure))
        return measure

    return register


def rows(packages: frozenset[str] | None = None) -> list[Cells]:
    """Measure the rows, in order; with `packages` those of these alone."""
    made = []
    for package, name, measure in ROWS:
        if packages is None or package in packages:
            with said() as words:
                cells = measure()
            made.append({"package": package, "version": _version(package), "row": name, **cells, "said": words[0]})
    return made


@contextmanager
def said() -> Iterator[list[str]]:
    """Yield a list of one text: the kinds of warnings and log lines of the block, once it has ended."""
    found, words = [], [""]
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: found.append("a log line")
    logging.getLogger().addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield words
    finally:
        logging.getLogger().removeHandler(handler)
        names = [warning.category.__name__ for warning in caught] + found
        words[0] = ", ".join(dict.fromkeys(names)) or "nothing"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def main() -> None:
    out, sys.stdout = sys.stdout, sys.stderr  # some packages print
    json.dump(rows(), out, default=lambda number: number.item())  # NumPy's and PyTorch's numbers
