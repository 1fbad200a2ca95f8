"""Schedule the machine's loop, write it as Verilog, count it with Yosys: make schedule, make rtl, make synth."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bttlab.estimate.recorded import RECORD
from bttlab.util.errors import BttlabError
from bttlab.util.files import write_file
from bttlab.util.quantities import to_json
from bttlab.util.terminal import result, say
from bttlab_hardware import SOURCE, UNIT, analyse, report, schedule_of
from bttlab_hardware.files import write_loop
from bttlab_hardware.record import make_record
from bttlab_hardware.synth import count_modules


def schedule(options: argparse.Namespace) -> int:
    """Show the schedule of a source; the exit code is 1 if it breaks a rule."""
    if options.source != SOURCE and options.record:
        raise BttlabError(f"--record is of {SOURCE}, the committed source; leave --source out")
    if not (options.source / UNIT).is_file():
        raise BttlabError(f"no {UNIT} in {options.source}: --source takes the folder of the machine's source")
    scheduled = schedule_of(options.source / UNIT)
    data = report.to_dict(*scheduled)
    if options.record:
        write_file(RECORD, to_json(make_record(*scheduled), 1) + "\n")
    result(to_json(data, indent=2)) if options.json else Console().print(report.to_text(data))
    return int(bool(data["violations"]))


def rtl(options: argparse.Namespace) -> int:
    if options.folder.exists() and not options.folder.is_dir():
        raise BttlabError(f"{options.folder} is a file; give a folder for the Verilog")
    found = analyse(SOURCE / UNIT)
    files = write_loop(found, options.folder)
    lines = sum(text.count("\n") for name, text in files.items() if name.endswith(".v"))
    result(f"{options.folder}: {lines:,} lines of Verilog, {found.stages} stages")
    return 0


def synth(options: argparse.Namespace) -> int:
    count_modules()
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bttlab_hardware", description=__doc__)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    one = commands.add_parser("schedule", help="ports, recurrences, interval, depth, operators, resources")
    one.add_argument("--source", type=Path, default=SOURCE, metavar="DIR", help="default: hls_src/processor")
    one.add_argument("--record", action="store_true", help="write data/u50/machine.json, which bttlab estimate reads")
    one.add_argument("--json", action="store_true", help="print the result as one JSON object")
    one.set_defaults(run=schedule)
    one = commands.add_parser("rtl", help="write the machine as Verilog")
    one.add_argument("folder", type=Path, metavar="DIR")
    one.set_defaults(run=rtl)
    one = commands.add_parser("synth", help="count it with Yosys into data/u50/synthesis.json: minutes")
    one.set_defaults(run=synth)
    options = parser.parse_args(arguments)
    try:
        return options.run(options)
    except BttlabError as error:
        say(f"error: {error}")
        return 2


if __name__ == "__main__":
    sys.exit(main())
