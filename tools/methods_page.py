"""Write the tables and figures of docs/methods.md from the records of results: python tools/methods_page.py.

The records are made by
    bttlab methods run dense NAME… --data atis --budget 0.5epoch --seeds 0 1 2 --split test --record data/methods/X.json
    bttlab methods run tensor tensor+NAME… --data atis --budget 2epochs, else as above; X: atis, atis_tensor
"""

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pages import filled, in_per_cent

from bttlab.util.errors import BttlabError
from bttlab.util.files import write_file
from bttlab.util.places import ROOT
from bttlab.util.terminal import say
from bttlab_methods.method import FAMILIES
from bttlab_methods.record import RECORDS, SCORES, by_methods, joules, mean, pretraining, read_records
from bttlab_methods.registry import parse
from bttlab_methods.run import Result

PAGE = ROOT / "docs" / "methods.md"
_TOGETHER = "together"
_HEADER = [
    "methods",
    "family",
    *(f"{name} %" for name in SCORES.values()),
    "trained",
    "peak MB",
    "activations MB",
    "s/epoch",
]


def table(results: Sequence[Result], reference: str) -> str:
    """Return a Markdown table of the reference, the methods by family, and the combinations."""
    groups = by_methods(results)
    metered = any(result.joules_per_epoch["value"] is not None for result in results)
    lines = [_HEADER, ["---", "---", *["---:"] * (len(_HEADER) - 2)]]
    lines += [_row(name, groups[name], groups[reference]) for name in _in_order(groups, reference)]
    if metered:
        energies = ["J/epoch", "---:", *(joules(groups[name]) for name in _in_order(groups, reference))]
        lines = [[*line, energy] for line, energy in zip(lines, energies, strict=True)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _in_order(names: Iterable[str], reference: str) -> list[str]:
    families = (*FAMILIES, _TOGETHER)
    others = [name for name in names if name != reference]
    return [reference, *sorted(others, key=lambda name: families.index(_family(name)))]


def _family(name: str) -> str:
    combination = parse(name)
    if not combination:
        return ""
    return combination[0].family if len(combination) == 1 else _TOGETHER


def fill(text: str, records: Mapping[str, Sequence[Result]]) -> str:
    """Return the page with the records' tables between its markers."""
    return filled(text, {name: table(results, RECORDS[name]) for name, results in records.items()}, PAGE.name)


def _row(name: str, group: Sequence[Result], reference: Sequence[Result]) -> list[str]:
    """Return a row of a table; peak memory and time also relative to the reference."""

    def relative(value) -> str:
        return "" if group is reference else f" ({mean(group, value) / mean(reference, value):.2f})"

    def peak(result: Result) -> float:
        return result.memory["peak"]["value"] / 1e6

    def activations(result: Result) -> float:
        return result.memory["most"]["activations"]["value"] / 1e6

    def seconds(result: Result) -> float:
        return result.seconds_per_epoch["value"]

    return [
        f"`{name}`{pretraining(group)}",
        _family(name),
        *(in_per_cent([result.scores["test"][key] for result in group]) for key in SCORES),
        f"{group[0].trained:,}",
        f"{mean(group, peak):.1f}{relative(peak)}",
        f"{mean(group, activations):.1f}",
        f"{mean(group, seconds):.1f}{relative(seconds)}",
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    argparse.ArgumentParser(description=__doc__.split("\n")[0]).parse_args(arguments)
    try:
        from bttlab.lab.charts import to_png
        from bttlab_methods.lab_figures import draw_results, draw_scatter

        records = read_records()
        write_file(PAGE, fill(PAGE.read_text(encoding="utf-8"), records))
        pictures = {}
        for name, results in records.items():
            groups = by_methods(results)
            ordered = [result for methods in _in_order(groups, RECORDS[name]) for result in groups[methods]]
            pictures[Path(name).stem] = draw_results(ordered, "test")
        pictures["scatter"] = draw_scatter(next(iter(records.values())))
        for name, picture in pictures.items():
            (PAGE.parent / "images" / f"methods_{name}.png").write_bytes(to_png(picture.figure))
    except (BttlabError, OSError) as error:
        say(error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
