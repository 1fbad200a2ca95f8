"""Result of a benchmark: rows of figures, and the ratio of each contender to the first."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from benchmarks.turns import Spread, spread
from bttlab.util.quantities import in_digits


@dataclass(frozen=True)
class Table:
    """A table for people: cells are text."""

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Result:
    """Result of a benchmark.

    Attributes
    ----------
    settings : dict
        What it ran on: corpus, sizes, rounds.
    figures : dict of str to dict
        For each column of figures: unit, provenance and how it was found.
    rows : list of dict
        What distinguishes a row (contender, threads, tokens, …) and its figures.
    ratios : dict of str to dict
        For each case: a contender's figure over ours, median and quartiles of the rounds' ratios. If it falls, we have
        become worse against that contender.
    notes : list of str
        What could not be measured, and why.
    programs : list of int
        Encoders of the models whose programs of the card were run or modelled.
    """

    settings: dict[str, Any]
    figures: dict[str, dict[str, str]]
    rows: list[dict[str, Any]]
    ratios: dict[str, dict[str, float]]
    notes: list[str] = field(default_factory=list)
    programs: list[int] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return what --json prints."""
        return asdict(self)


def time_rows(key: Mapping[str, Any], seconds: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """Return a row for each contender: `key`, its name and its time in ms."""
    return [{**key, "contender": name, "time": rounded(spread(1e3 * values))} for name, values in seconds.items()]


def time_ratios(case: str, seconds: Mapping[str, np.ndarray], ours: str) -> dict[str, dict[str, float]]:
    """Return how many times as long as ours the others take: of each round, as a busy moment hits both."""
    return {
        f"{case}{name}": rounded(spread(values / seconds[ours])) for name, values in seconds.items() if name != ours
    }


def exact_ratio(value: float, ours: float) -> dict[str, float]:
    """Return a ratio of figures that do not vary."""
    return rounded(Spread(*[value / ours] * 3))


def rounded(values: Spread) -> dict[str, float]:
    """Return a spread for JSON, to five digits."""
    return {name: float(f"{value:.5g}") for name, value in asdict(values).items()}


def describe_runs(values: Mapping[str, float]) -> str:
    """Return a spread as text: median, and quartiles in brackets."""
    median, lower, upper = (in_digits(values[name]) for name in ("median", "lower_quartile", "upper_quartile"))
    return f"{median} ({lower} to {upper})"


def rich_table(source: Table) -> Any:
    """Return a table that rich prints."""
    from rich.table import Table as RichTable

    table = RichTable(title=source.title)
    for number, header in enumerate(source.headers):
        table.add_column(header, justify="right" if number else "left")
    for row in source.rows:
        table.add_row(*row)
    return table
