"""Write the table of docs/survey.md from the registry and the records of results: python tools/survey_page.py."""

import sys
from collections.abc import Sequence

from pages import filled, in_per_cent, write_tables

from bttlab.util.places import ROOT
from bttlab_methods import Result, combination_name, parse
from bttlab_methods.record import by_methods, mean, read_gone, read_records
from bttlab_methods.survey import GROUPS, TECHNIQUES, Technique

PAGE = ROOT / "docs" / "survey.md"
HEADER = ("technique", "here", "slot F1 %", "peak MB", "s/epoch", "on what it would pay, or why it is not here")


def table() -> str:
    """Return a Markdown table of all techniques, by the survey's sections."""
    results, gone = by_methods(read_records()["atis.json"]), read_gone()
    lines = [HEADER, ["---", "---", "---:", "---:", "---:", "---"], ["`dense`", "", *_numbers(results["dense"]), ""]]
    for group in GROUPS:
        lines.append([f"**{group}**", "", "", "", "", ""])
        lines += [_row(one, results, gone) for one in TECHNIQUES if one.group == group]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _row(technique: Technique, results: dict[str, list[Result]], gone: dict[str, list[Result]]) -> list[str]:
    if technique.row:
        here, found = f"`{technique.row}`", results.get(combination_name(parse(technique.row)), ())
    elif technique.gone:
        here, found = f"`{technique.gone}`, gone; measured with 0.1.0", gone[technique.gone]
    else:
        here, found = "needs a GPU" if technique.needs_gpu else "no", ()
    note = technique.note
    if technique.row and parse(technique.row)[0].processes > 1:
        note = f"{note}; on two processes" if note else "on two processes"
    return [technique.name, here, *_numbers(found), note]


def _numbers(group: Sequence[Result]) -> list[str]:
    if not group:
        return ["", "", ""]
    return [
        in_per_cent([one.scores["test"]["slot_f1"] for one in group]),
        f"{mean(group, lambda one: one.memory['peak']['value']) / 1e6:.1f}",
        f"{mean(group, lambda one: one.seconds_per_epoch['value']):.1f}",
    ]


def counts() -> str:
    """Return how many techniques there are, in a sentence."""
    rows = sum(bool(one.row) for one in TECHNIQUES)
    gone = sum(bool(one.gone) for one in TECHNIQUES)
    gpu = sum(one.needs_gpu and not one.row and not one.gone for one in TECHNIQUES)
    rest = len(TECHNIQUES) - rows - gone - gpu
    return (
        f"Of {len(TECHNIQUES)} techniques {rows} have a row that `bttlab methods run NAME` trains. {gone} were "
        f"measured with an earlier version and are gone. {gpu} need a GPU, and {rest} are not here; "
        "the last column says why.\n"
    )


def fill(text: str) -> str:
    """Return the page with its table."""
    return filled(text, {"counts": counts(), "techniques": table()}, PAGE.name)


def main(arguments: Sequence[str] | None = None) -> int:
    return write_tables(PAGE, fill, __doc__, arguments)


if __name__ == "__main__":
    sys.exit(main())
