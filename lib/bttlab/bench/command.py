"""Measure training steps side by side: contenders take turns on the same work in one process."""

import argparse

from bttlab.commands import Outcome
from bttlab.util.errors import BttlabError

SUMMARY = "measure a training step on the emulated card against PyTorch and tensorly-torch"
OPTIONS = ("data", "encoders", "samples", "rounds", "threads")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add = parser.add_argument
    add("what", nargs="?", choices=("step",), default="step", help="a training step (default)")
    add("--data", metavar="NAME|PATH", default="atis", help="corpus (default: atis)")
    add("--encoders", type=int, metavar="N", default=2, help="encoder blocks (default: 2)")
    add("--samples", type=int, metavar="N", default=16, help="samples of a turn (default: 16)")
    add("--rounds", type=int, metavar="N", default=9, help="turns that count (default: 9)")
    add("--threads", type=int, nargs="+", metavar="N", default=[1, 2], help="threads of PyTorch (default: 1 2)")


def run(options: argparse.Namespace) -> Outcome:
    """Run the command."""
    from rich.console import Group

    from bttlab.bench.result import rich_table
    from bttlab.bench.step import measure, tables

    for name in ("samples", "rounds", "threads"):
        value = getattr(options, name)
        if min(value if name == "threads" else [value]) < 1:
            raise BttlabError(f"--{name} is {value}: it must be at least 1")
    data, encoders, samples, rounds, threads = (getattr(options, name) for name in OPTIONS)
    result = measure(data, encoders, samples, threads, rounds).to_dict()
    return Outcome(result, Group(*map(rich_table, tables(result))))
