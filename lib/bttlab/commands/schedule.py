"""Show what the synthesis source is: ports, recurrences, interval, depth, operators, cost of the machine's loop."""

import argparse
from pathlib import Path

from bttlab.commands import Outcome
from bttlab.errors import BttlabError
from bttlab.files import replace_whole
from bttlab.terminal import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add = parser.add_argument
    add("--source", type=Path, metavar="DIR", help="folder of the machine's source (default: hls_src/processor)")
    add("--csynth", type=Path, metavar="FILE", help="compare the kept result with a csynth.xml of Vitis HLS instead")
    add("--record", action="store_true", help="keep the result in data/u50/machine.json, which bttlab estimate reads")


def run(options: argparse.Namespace) -> Outcome:
    """Run the command."""
    try:
        from bttlab.estimate import csynth
        from bttlab.estimate.recorded import RECORD, machine_record, make_record
        from bttlab.estimate.schedule import SOURCE, UNIT, report, schedule_of
        from bttlab.figures import to_json
    except ModuleNotFoundError as error:
        raise BttlabError(
            f"the schedule needs {error.name}, which is not installed; install it with: pip install 'bttlab[lab]'"
        ) from None

    if options.source and (options.record or options.csynth):
        raise BttlabError("--record and --csynth are of what is committed, hls_src/processor; leave --source out")
    if options.csynth:
        record = machine_record()
        if not record.is_current:
            say("bttlab: note: data/u50/machine.json is of another source; bttlab schedule --record makes it anew")
        made = csynth.read_csynth(options.csynth)
        rows = csynth.compare(record, made)
        data = csynth.to_dict(rows, made)
        return Outcome(data, csynth.to_text(rows, made), 0 if data["agrees"] else 1)
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
