"""Schedule the machine's loop, write it as Verilog, count it with Yosys: make schedule, make rtl, make synth."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bttlab.commands import Parser
from bttlab.compiler.machine import CLOCKS
from bttlab.estimate.recorded import record_of
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
    scheduled = {clock: schedule_of(options.source / UNIT, clock) for clock in CLOCKS if options.record}
    if options.clock not in scheduled:
        scheduled[options.clock] = schedule_of(options.source / UNIT, options.clock)
    data = report.to_dict(*scheduled[options.clock])
    if options.record:
        for clock, found in scheduled.items():
            write_file(record_of(clock), to_json(make_record(*found), 1) + "\n")
    result(to_json(data, indent=2)) if options.json else Console().print(report.to_text(data))
    return int(bool(data["violations"]))


def rtl(options: argparse.Namespace) -> int:
    if options.folder.exists() and not options.folder.is_dir():
        raise BttlabError(f"{options.folder} is a file; give a folder for the Verilog")
    found = analyse(SOURCE / UNIT, clock_mhz=options.clock)
    files = write_loop(found, options.folder)
    lines = sum(text.count("\n") for name, text in files.items() if name.endswith(".v"))
    result(f"{options.folder}: {lines:,} lines of Verilog, {found.stages} stages")
    return 0


def synth(options: argparse.Namespace) -> int:
    for clock in CLOCKS:
        count_modules(clock)
    return 0


def _add_clock(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--clock", type=int, choices=CLOCKS, default=CLOCKS[0], metavar="MHZ", help="200 or 300")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m bttlab_hardware", description=__doc__)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    one = commands.add_parser("schedule", help="ports, recurrences, interval, depth, operators, resources")
    one.add_argument("--source", type=Path, default=SOURCE, metavar="DIR", help="default: hls_src/processor")
    one.add_argument("--record", action="store_true", help="write the records in data/u50, which bttlab estimate reads")
    one.add_argument("--json", action="store_true", help="print the result as one JSON object")
    _add_clock(one)
    one.set_defaults(run=schedule)
    one = commands.add_parser("rtl", help="write the machine as Verilog")
    one.add_argument("folder", type=Path, metavar="DIR")
    _add_clock(one)
    one.set_defaults(run=rtl)
    one = commands.add_parser("synth", help="count it with Yosys, at both clocks, into data/u50: minutes")
    one.set_defaults(run=synth)
    try:
        options = parser.parse_args(arguments)
        return options.run(options)
    except BttlabError as error:
        say(f"error: {error}")
        return 2


if __name__ == "__main__":
    sys.exit(main())
