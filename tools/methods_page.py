"""docs/methods.md: the tables between its markers, and its figures, made from the records of results.

Run as python tools/methods_page.py.
"""

import argparse
import itertools
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pages import filled, in_per_cent

from bttlab.errors import BttlabError
from bttlab.places import ROOT
from bttlab.records import write_whole
from bttlab.terminal import say
from bttlab_methods.method import FAMILIES
from bttlab_methods.record import RECORDS, SCORES, by_methods, joules, mean, pretraining, read_records
from bttlab_methods.registry import parse
from bttlab_methods.run import Result

PAGE = ROOT / "docs" / "methods.md"
_HEADER = [
    "methods",
    "seeds",
    *(f"{name} %" for name in SCORES.values()),
    "trained",
    "peak MB",
    "activations MB",
    "s/epoch",
    "J/epoch",
]


def table(results: Sequence[Result], reference: str) -> str:
    """Return a Markdown table: the reference, the methods by family, then the combinations."""
    groups = by_methods(results)
    blank = [""] * (len(_HEADER) - 1)
    lines = [_HEADER, ["---", *["---:"] * len(blank)], _row(reference, groups[reference], groups[reference])]
    for section, names in _sections(groups, reference).items():
        if names:
            lines += [[f"**{section}**", *blank], *(_row(name, groups[name], groups[reference]) for name in names)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _sections(names: Iterable[str], reference: str) -> dict[str, list[str]]:
    others = [name for name in names if name != reference]
    return {family: [name for name in others if _family(name) == family] for family in (*FAMILIES, "together")}


def _in_order(record: str, records: Mapping[str, Sequence[Result]]) -> list[Result]:
    """A record's results in the order of its table."""
    groups, reference = by_methods(records[record]), RECORDS[record]
    names = [reference, *itertools.chain(*_sections(groups, reference).values())]
    return [result for name in names for result in groups[name]]


def _family(name: str) -> str:
    combination = parse(name)
    return combination[0].family if len(combination) == 1 else "together"


def fill(text: str, records: Mapping[str, Sequence[Result]]) -> str:
    """Return the page with the records' tables between its markers.

    Raises
    ------
    BttlabError
        If a marker is missing.
    """
    return filled(text, {name: table(results, RECORDS[name]) for name, results in records.items()}, PAGE.name)


def _row(name: str, group: Sequence[Result], reference: Sequence[Result]) -> list[str]:
    """Return a line of a table; memory and time also as a part of the reference's."""

    def beside(value) -> str:
        return "" if group is reference else f" ({mean(group, value) / mean(reference, value):.2f})"

    def peak(result: Result) -> float:
        return result.memory["peak"]["value"] / 1e6

    def activations(result: Result) -> float:
        return result.memory["most"]["activations"]["value"] / 1e6

    def seconds(result: Result) -> float:
        return result.seconds_per_epoch["value"]

    return [
        f"`{name}`{pretraining(group)}",
        str(len(group)),
        *(in_per_cent([result.scores["test"][key] for result in group]) for key in SCORES),
        f"{group[0].trained:,}",
        f"{mean(group, peak):.1f}{beside(peak)}",
        f"{mean(group, activations):.1f}{beside(activations)}",
        f"{mean(group, seconds):.1f}{beside(seconds)}",
        joules(group),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page and its figures again; returns the exit code."""
    argparse.ArgumentParser(description=__doc__.split("\n")[0]).parse_args(arguments)
    try:
        from bttlab.lab.charts import to_png
        from bttlab_methods.lab_figures import results_figure, scatter_figure

        records = read_records()
        write_whole(PAGE, fill(PAGE.read_text(encoding="utf-8"), records))
        pictures = {Path(name).stem: results_figure(_in_order(name, records), "test") for name in records}
        pictures["scatter"] = scatter_figure(next(iter(records.values())))
        for name, figure in pictures.items():
            (PAGE.parent / "images" / f"methods_{name}.png").write_bytes(to_png(figure))
    except (BttlabError, OSError) as error:
        say(error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
