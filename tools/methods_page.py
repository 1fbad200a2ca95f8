"""Write the tables and figures of docs/methods.md from the records of results: python tools/methods_page.py.

The records are made by
    bttlab methods run dense NAME… --data atis --budget 0.5epoch --seeds 0 1 2 --split test --record data/methods/X.json
    bttlab methods run tensor tensor+NAME… --data atis --budget 2epochs, else as above; X: atis, atis_tensor
The third record and its programs are those of tools/adapters.py.
"""

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from adapters import CARD
from pages import filled, in_per_cent, markdown
from picture_sources import IMAGES, SOURCES

from bttlab.baseline.receipt import Receipt
from bttlab.data.epoch import EPOCH_SAMPLES
from bttlab.model import ModelConfig
from bttlab.util.errors import BttlabError
from bttlab.util.files import write_file
from bttlab.util.places import ROOT
from bttlab.util.terminal import say
from bttlab_methods.method import FAMILIES
from bttlab_methods.record import (
    ADAPTERS,
    RECORDS,
    SCORES,
    Results,
    by_methods,
    joules,
    mean,
    peak,
    pretraining,
    read_records,
    slot_f1,
)
from bttlab_methods.registry import parse
from bttlab_methods.run import Result

PAGE = ROOT / "docs" / "methods.md"
_TOGETHER = "together"
HEADS = ModelConfig().intents + ModelConfig().slots  # classes, which every row trains
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
    tables = {name: table(results, RECORDS[name]) for name, results in records.items()}
    tables |= {"adapters": adapters(), "experts": experts(records), "versions": versions(records)}
    return filled(
        text, tables | {"adapters": adapters(), "experts": experts(records), "versions": versions(records)}, PAGE.name
    )


def experts(records: Mapping[str, Sequence[Result]]) -> str:
    """Return a list of what mixtures of experts come to with the multiplications of the dense model."""
    groups = by_methods(next(iter(records.values())))
    rows = {"dense model": "dense", "dense mixture": ":active=4", "two active experts": ":active=2", "one active": ""}
    lines = []
    for title, name in rows.items():
        group = groups[name if name == "dense" else f"mixture-of-experts{name}"]
        scores = in_per_cent([slot_f1(one) for one in group])
        seconds = mean(group, lambda one: one.seconds_per_epoch["value"])
        size = mean(group, peak) / 1e6
        lines.append(
            f"- {title}: slot F1 {scores} %, {group[0].trained:,} parameters, {size:.0f} MB, {seconds:.0f} s\n"
        )
    return "".join(lines)


def adapters() -> str:
    """Return a Markdown table of adapters: measured in PyTorch, and modelled on the card."""
    headers = ("methods", "slot F1 %", "trained", "heads aside", "MB in banks", "cycles a sample", "J/epoch")
    figures, rows = Receipt.read(CARD).figures, []
    for name, group in by_methods(Results.read(ADAPTERS).results).items():
        cycles, energy, size = (figures[f"{name}.{key}"] for key in ("cycles", "joules", "bytes"))
        beside = group[0].trained - group[0].model["hidden_size"] * HEADS - HEADS
        rows.append(
            (
                f"`{name}`",
                in_per_cent([slot_f1(one) for one in group]),
                f"{group[0].trained:,}",
                f"{beside:,}",
                f"{size.value / 1e6:.2f}",
                f"{cycles.value / EPOCH_SAMPLES:,.0f}",
                f"{energy.value:.1f} ({energy.low:.0f} to {energy.high:.0f})",
            )
        )
    return markdown(headers, rows)


def versions(records: Mapping[str, Sequence[Result]]) -> str:
    """Return a sentence for each version of bttlab but the newest: which methods it made."""
    made: dict[str, dict[str, None]] = {}  # names in their order
    for results in records.values():
        for name, group in by_methods(results).items():
            for version in {one.versions["bttlab"] for one in group}:
                made.setdefault(version, {})[f"`{name}`"] = None
    *older, newest = sorted(made)
    lines = [f"Version {one} made {len(made[one])} methods and combinations: {', '.join(made[one])}." for one in older]
    return f"Version {newest} made {len(made[newest])} methods and combinations. {' '.join(lines)}\n"


def _row(name: str, group: Sequence[Result], reference: Sequence[Result]) -> list[str]:
    """Return a row of a table; peak memory and time also relative to the reference."""

    def relative(value) -> str:
        return "" if group is reference else f" ({mean(group, value) / mean(reference, value):.2f})"

    def activations(result: Result) -> float:
        return result.memory["most"]["activations"]["value"] / 1e6

    def seconds(result: Result) -> float:
        return result.seconds_per_epoch["value"]

    return [
        f"`{name}`{pretraining(group)}",
        _family(name),
        *(in_per_cent([result.scores["test"][key] for result in group]) for key in SCORES),
        f"{group[0].trained:,}",
        f"{mean(group, peak) / 1e6:.1f}{relative(peak)}",
        f"{mean(group, activations):.1f}",
        f"{mean(group, seconds):.1f}{relative(seconds)}",
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    argparse.ArgumentParser(description=__doc__.split("\n")[0]).parse_args(arguments)
    try:
        from bttlab.lab.charts import to_png
        from bttlab_methods.lab_figures import draw_expert_loads, draw_results, draw_scatter

        records = read_records()
        write_file(PAGE, fill(PAGE.read_text(encoding="utf-8"), records))
        pictures = {}
        for name, results in records.items():
            groups = by_methods(results)
            ordered = [result for methods in _in_order(groups, RECORDS[name]) for result in groups[methods]]
            pictures[Path(name).stem] = draw_results(ordered, "test")
        alone = next(iter(records.values()))
        pictures["scatter"] = draw_scatter(alone)
        for active, name in ((1, "mixture-of-experts"), (2, "mixture-of-experts:active=2")):
            pictures[f"experts_{active}"] = draw_expert_loads(by_methods(alone)[name][0])
        for name, picture in pictures.items():
            file = f"methods_{name}"
            (IMAGES / f"{file}.png").write_bytes(to_png(picture.figure, description=SOURCES[file]()))
    except (BttlabError, OSError) as error:
        say(error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
