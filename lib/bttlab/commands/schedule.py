"""Show what the synthesis source is: ports, recurrences, interval, depth, operators, cost of the machine's loop."""

import argparse
from pathlib import Path

from bttlab.commands import Outcome
from bttlab.util.errors import BttlabError
from bttlab.util.files import replace_whole


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add = parser.add_argument
    add("--source", type=Path, metavar="DIR", help="folder of the machine's source (default: hls_src/processor)")
    add("--record", action="store_true", help="keep the result in data/u50/machine.json, which bttlab estimate reads")


def run(options: argparse.Namespace) -> Outcome:
    """Run the command."""
    from bttlab.estimate.recorded import RECORD, make_record
    from bttlab.hardware import SOURCE, UNIT, report, schedule_of
    from bttlab.util.quantities import to_json

    if options.source and options.record:
        raise BttlabError("--record is of the committed source, hls_src/processor; leave --source out")
    folder = options.source or SOURCE
    if not (folder / UNIT).is_file():
        raise BttlabError(
            f"no {UNIT} in {folder}: --source takes the folder of the machine's source, as hls_src/processor"
        )
    scheduled = schedule_of(folder / UNIT)
    data = report.to_dict(*scheduled)
    if options.record:
        replace_whole(RECORD, to_json(make_record(*scheduled), 1) + "\n")
    return Outcome(data, report.to_text(data), 1 if data["violations"] else 0)
