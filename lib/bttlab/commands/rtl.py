"""Write the machine's loop as Verilog, from its schedule, with the FP32 cores that it needs."""

import argparse
from pathlib import Path

from bttlab.commands import Outcome
from bttlab.errors import BttlabError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add = parser.add_argument
    add("folder", type=Path, metavar="DIR", help="where the Verilog goes: machine_loop.v, its cores, loop_host.h")


def run(options: argparse.Namespace) -> Outcome:
    """Run the command."""
    from bttlab.hardware import SOURCE, UNIT, analyse, rtl

    if options.folder.exists() and not options.folder.is_dir():
        raise BttlabError(f"{options.folder} is a file; give a folder for the Verilog")
    schedule = analyse(SOURCE / UNIT)
    loop = rtl.emit(schedule)
    files = loop.write(options.folder)
    data = {
        "files": [str(path) for path in files],
        "lines": loop.text.count("\n"),
        "memories": len(loop.memories),
        "interval": schedule.interval,
        "stages": schedule.stages,
        "clock_mhz": schedule.clock_mhz,
    }
    text = f"{files[0]}: {data['lines']:,} lines, {data['memories']} memories, {data['stages']} stages"
    return Outcome(data, text)
