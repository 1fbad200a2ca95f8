"""The option --receipt, and the commands that a receipt may name."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from bttlab.util.errors import BttlabError
from bttlab.util.files import check_output

# Where a command writes, and how it prints: no part of what it computes.
LEFT_OUT = {"--receipt": 1, "--out": 1, "--record": 1, "--picture": 1, "--json": 0}
REPEATED = ("train", "estimate", "race", "baseline", "methods")  # commands that write receipts
# Options that run code which a receipt names, or take what only this machine has.
UNREPEATABLE = ("--model", "--trust", "--resume", "--run", "--plugin", "--overlay", "--checkpoint")


def add_receipt(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--receipt",
        type=Path,
        metavar="FILE",
        help="write a receipt of the figures: bttlab replay FILE makes them again and compares",
    )


def check_receipt(options: argparse.Namespace) -> None:
    """Raise BttlabError, before anything slow, if a receipt is asked for that could not be written or replayed."""
    if options.receipt is not None:
        check_output(Path(options.receipt), "--receipt")
        repeatable(options.command_line)


def repeatable(command_line: Sequence[str]) -> list[str]:
    """Return a command line without what says where it writes.

    Raises BttlabError if it is no command that a receipt may name.
    """
    kept, rest = [], list(command_line)
    while rest:
        token = rest.pop(0)
        name, is_joined, _ = token.partition("=")
        if name in UNREPEATABLE:
            raise BttlabError(f"{name}: no receipt can name it; leave {name} out, or --receipt")
        if name not in LEFT_OUT:
            kept.append(token)
        elif not is_joined:
            del rest[: LEFT_OUT[name]]
    if not kept or kept[0] not in REPEATED:
        raise BttlabError(
            f"{' '.join(kept[:1]) or 'nothing'!r} is no command that a receipt may name: {', '.join(REPEATED)}"
        )
    return kept
