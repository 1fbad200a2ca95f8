"""The subcommands of `bttlab`, a module each.

A module has `add_arguments(parser)` and `run(options) -> Outcome`; what is slow to import, it imports in `run`. A new
command is a module and a line in COMMANDS; a plugin's has its SUMMARY, too, and an entry point.
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from bttlab.util.errors import BttlabError

COMMANDS = {
    "doctor": "say what is here: cards, overlays, corpora, GPU, meters",
    "bringup": "check a real card step by step and write a record",
    "notebooks": "copy the notebooks into a folder to work in",
    "course": "make an nbgrader course of the notebooks",
    "data": "make a corpus of a table, CoNLL, or a folder of texts",
    "size": "compare dense and tensor sizes",
    "train": "train a tensor transformer, or continue a run",
    "eval": "score a trained model",
    "predict": "predict the intent and the slots of a sentence",
    "race": "let the card, a CPU, a GPU and records train to the same score",
    "replay": "make the figures of a receipt again and compare",
    "baseline": "measure training with PyTorch on a GPU or CPU",
    "estimate": "model memory, resources, time and energy on the U50",
    "program": "list a model's program, its hazards, its timeline",
    "runs": "list, show, compare and export runs",
    "sweep": "run the trials of a specification, here or with Dask",
}


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are ours: one line."""

    def error(self, message: str) -> NoReturn:
        raise BttlabError(f"{message}; see {self.prog} --help")


@dataclass(frozen=True)
class Outcome:
    data: dict[str, Any]  # for --json
    text: Any  # for people
    exit_code: int = 0


def add_actions(parser: argparse.ArgumentParser, summaries: Mapping[str, str]) -> dict[str, argparse.ArgumentParser]:
    """Add the actions of a command, as `list` of `bttlab runs list`; `options.action` names the chosen one."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True, dest="action")
    for name, summary in summaries.items():
        action = actions.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        action.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    return dict(actions.choices)


OK, NOTE, PROBLEM = "ok", "note", "problem"


@dataclass(frozen=True)
class Check:
    """Finding of the doctor about one thing."""

    name: str
    # "ok", "note", "problem": a note is something that is not here and that one may miss; a problem is broken and
    # needed
    status: str
    detail: str
    way_out: str = ""  # what to do about it
    data: dict[str, Any] = field(default_factory=dict)  # details for --json

    def __str__(self) -> str:
        return f"{self.status:8} {self.name}: {self.detail}" + f"\n{'':8}   -> {self.way_out}" * bool(self.way_out)
