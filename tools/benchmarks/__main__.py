"""Run benchmarks, and write docs/benchmarks.md, its record and its figures: PYTHONPATH=tools python -m benchmarks NAME…

Without a name all run.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

from rich.console import Console

from benchmarks import page, record
from benchmarks.result import rich_table
from bttlab.util.errors import BttlabError
from bttlab.util.places import ROOT
from bttlab.util.terminal import say

NAMES = ("layer", "step", "order", "memory", "start")


def module_of(name: str) -> ModuleType:
    return import_module(f"benchmarks.{name}")


def main(arguments: Sequence[str] | None = None, docs: Path = ROOT / "docs") -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--receipt", type=Path, metavar="FILE", help="write the record of this run there alone")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - {*NAMES}:
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; choose from {', '.join(NAMES)}")
    before = record.read(docs / page.RECORD)
    results = {}
    for name in options.names or NAMES:
        say(f"bench {name} …")
        results[name] = record.run(module_of(name).measure)
    report = record.build(results)
    for name, result in report["benchmarks"].items():
        Console().print(*map(rich_table, module_of(name).tables(result)), *result["notes"], sep="\n")
    if options.receipt is not None:
        return record.write(options.receipt, report)
    report["benchmarks"] = (before or report)["benchmarks"] | report["benchmarks"]  # what has not run now stays
    record.write(docs / page.RECORD, report)
    page.write(docs, report, {name: module_of(name) for name in report["benchmarks"]})


if __name__ == "__main__":
    try:
        main()
    except BttlabError as error:
        say(f"error: {error}")
        sys.exit(2)
