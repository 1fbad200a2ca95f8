"""Show what the synthesis source is: ports, recurrences, interval, depth, operators, cost of the machine's loop."""

import argparse
from pathlib import Path

from bttlab.commands import Outcome
from bttlab.errors import BttlabError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "--source", type=Path, metavar="DIR", help="folder of the machine's source (default: hls_src/processor)"
    )


def run(options: argparse.Namespace) -> Outcome:
    """Run the command."""
    try:
        from bttlab.estimate.schedule import SOURCE, UNIT, report, schedule_of
    except ModuleNotFoundError as error:
        raise BttlabError(
            f"the schedule needs {error.name}, which is not installed; install it with: pip install 'bttlab[lab]'"
        ) from None

    folder = options.source or SOURCE
    if not (folder / UNIT).is_file():
        raise BttlabError(
            f"no {UNIT} in {folder}: --source takes the folder of the machine's source, as hls_src/processor"
        )
    data = report.to_dict(*schedule_of(folder / UNIT))
    return Outcome(data, report.to_text(data), 1 if data["violations"] else 0)
