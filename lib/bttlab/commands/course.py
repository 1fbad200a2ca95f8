"""Make an nbgrader course of the notebooks in a folder; what is there already stays as it is."""

import argparse
from pathlib import Path

from bttlab.commands import Outcome


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="is made if it is not there")


def run(options: argparse.Namespace) -> Outcome:
    from bttlab.teaching.course import is_open, make_course

    names = make_course(options.folder)
    lines = [f"course of {sum(map(len, names.values())) - 1} assignments in {options.folder}; next, in that folder:"]
    lines.append("nbgrader generate_assignment 00_start_here, then nbgrader release_assignment 00_start_here")
    for name in names["kept"]:
        lines.append(
            f"kept {options.folder / name}, which is another than ours; without it, this command makes it again"
        )
    if is_open(options.folder):
        lines.append(
            f"other users can enter {options.folder}, where solutions, hidden tests and marks are: chmod 700 "
            f"{options.folder}, with the exchange elsewhere (BTTLAB_EXCHANGE)"
        )
    return Outcome({"folder": str(options.folder), **names}, "\n".join(lines))
