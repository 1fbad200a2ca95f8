"""Write the kernel as Verilog: its loop from the schedule, a state machine for the rest, cores, kernel.xml."""

import argparse
from pathlib import Path

from bttlab.commands import Outcome
from bttlab.util.errors import BttlabError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add = parser.add_argument
    add("folder", type=Path, metavar="DIR", help="where the files go: trainer.v is the top")


def run(options: argparse.Namespace) -> Outcome:
    """Run the command."""
    from bttlab.hardware import SOURCE, UNIT, analyse
    from bttlab.hardware.kernel import write_kernel

    if options.folder.exists() and not options.folder.is_dir():
        raise BttlabError(f"{options.folder} is a file; give a folder for the Verilog")
    schedule = analyse(SOURCE / UNIT)
    files = write_kernel(schedule, options.folder)
    data = {
        "files": [str(options.folder / name) for name in files],
        "lines": sum(text.count("\n") for name, text in files.items() if name.endswith(".v")),
        "interval": schedule.interval,
        "stages": schedule.stages,
        "clock_mhz": schedule.clock_mhz,
    }
    return Outcome(data, f"{data['files'][0]}: {data['lines']:,} lines with all modules, {data['stages']} stages")
