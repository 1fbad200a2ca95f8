"""Copy the notebooks, without solutions, into a folder to work in; one that is there already stays as it is."""

import argparse
from pathlib import Path

from bttlab.commands import Outcome


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="is made if it is not there")
    parser.add_argument(
        "--reset",
        nargs="*",
        metavar="NAME",
        help="give all notebooks, or those whose names begin so, as they come, and keep what is there beside them",
    )


def run(options: argparse.Namespace) -> Outcome:
    from bttlab.teaching.notebooks import copy_notebooks

    names = copy_notebooks(options.folder, options.reset)
    lines = [f"{len(names['copied'])} notebooks copied to {options.folder}: jupyter lab {options.folder}"]
    if names["same"]:
        lines.append(f"{len(names['same'])} were there already")
    for name in names["kept"]:
        lines.append(f"kept {options.folder / name}, which is another than ours; for ours, add --reset {name[:2]}")
    for name in names["aside"]:
        lines.append(f"what was there is now {options.folder / name}")
    return Outcome({"folder": str(options.folder), **names}, "\n".join(lines))
