"""docs/benchmarks.md: the tables between its markers, and the figures beside it, made from the record.

The page has the benchmarks that have a figure; the record has all.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pages import BENCHMARKS, begin_of, filled
from picture_sources import of_benchmark

from benchmarks.figures import DRAWINGS
from benchmarks.result import Table
from bttlab.lab.charts import to_png
from bttlab.util.files import write_file

PAGE, RECORD = "benchmarks.md", BENCHMARKS


def fill(text: str, record: Mapping[str, Any], modules: Mapping[str, Any]) -> str:
    """Return a page with the record's machine and tables between its markers."""
    parts = {"machine": _machine(record)}
    shown = (item for item in record["benchmarks"].items() if begin_of(f"{item[0]} of {RECORD}") in text)
    for name, result in shown:
        notes = "".join(f"- {note}\n" for note in dict.fromkeys(result["notes"]))
        parts[name] = "\n".join(map(_markdown, modules[name].tables(result))) + (f"\n{notes}" if notes else "")
    return filled(text, {f"{name} of {RECORD}": part for name, part in parts.items()}, PAGE)


def write(folder: Path, record: Mapping[str, Any], modules: Mapping[str, Any]) -> None:
    """Write page and figures into a folder that has the page."""
    page = folder / PAGE
    write_file(page, fill(page.read_text(encoding="utf-8"), record, modules))
    for name, draw in DRAWINGS.items():
        if name in record["benchmarks"]:
            result = record["benchmarks"][name]
            picture = to_png(draw(result), description=of_benchmark(name, result))
            (folder / "images" / f"bench_{name}.png").write_bytes(picture)


def _machine(record: Mapping[str, Any]) -> str:
    here = record["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in here["versions"].items())
    runs = record["benchmarks"].items()
    days = ", ".join(
        f"{name} {run['date'][:10]} ({run['load_before'][0]:.1f}, {run['load_after'][0]:.1f})" for name, run in runs
    )
    return (
        f"Machine of the record: {here['processor']}, {here['cores']} cores, {here['system']}; Python "
        f"{here['python']}, {versions}; OMP_WAIT_POLICY {here['wait_policy']}.\n"
        f"Runs (load average of a minute before and after): {days}.\n"
    )


def _markdown(table: Table) -> str:
    lines = [table.headers, ["---", *["---:"] * (len(table.headers) - 1)], *table.rows]
    return f"{table.title}:\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)
