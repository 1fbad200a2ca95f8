"""Measure side by side: contenders take turns on the same work in one process."""

import argparse
from importlib import import_module
from typing import Any

from bttlab.commands import Outcome
from bttlab.errors import BttlabError
from bttlab.terminal import say

SUMMARY = "measure a layer or a training step against PyTorch and tensorly-torch"
OPTIONS = {"layer": ("threads", "rounds"), "step": ("data", "encoders", "samples", "threads", "rounds")}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add = parser.add_argument
    add(
        "what",
        choices=tuple(OPTIONS),
        help="layer: a linear layer, forward and backward; step: a training step on the emulated card",
    )
    add("--data", metavar="NAME|PATH", help="corpus of step (default: atis)")
    add("--encoders", type=int, metavar="N", help="encoder blocks of step (default: 2)")
    add("--samples", type=int, metavar="N", help="samples of step in a turn (default: 16)")
    add("--rounds", type=int, metavar="N", help="turns that count (default: 9)")
    add("--threads", type=int, nargs="+", metavar="N", help="threads of PyTorch (default: 1 2)")


def run(options: argparse.Namespace) -> Outcome:
    """Run the command."""
    from rich.console import Group

    from bttlab.bench.result import rich_table

    for name, values in (
        ("samples", [options.samples]),
        ("rounds", [options.rounds]),
        ("threads", options.threads or ()),
    ):
        for value in values:
            if value is not None and value < 1:
                raise BttlabError(f"--{name} is {value}: it must be at least 1")
    say(f"bench {options.what} …")
    module = import_module(f"bttlab.bench.{options.what}")
    result = module.measure(**given(options, OPTIONS[options.what])).to_dict()
    tables = [rich_table(table) for table in module.tables(result)]
    return Outcome(result, Group(*tables, *dict.fromkeys(result["notes"])))


def given(options: argparse.Namespace, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the arguments of `measure` that the user gave."""
    values = {"corpus" if name == "data" else name: getattr(options, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}
