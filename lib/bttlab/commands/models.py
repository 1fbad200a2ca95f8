"""Options --rank and --flow of several commands."""

import argparse
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from bttlab.model.config import FLOWS, PAPER_FLOW


def add_rank(parser: argparse.ArgumentParser, default: Mapping[str, Any] | None = MappingProxyType({})) -> None:
    """Add --rank: fields of ModelConfig."""
    parser.add_argument(
        "--rank",
        type=ranks,
        default=default,
        metavar="N[,LAYER=N…]",
        help="rank of the linear layers, and of layers that have their own: 12,encoders.0.query=6 (default: 12)",
    )


def add_flow(parser: argparse.ArgumentParser, default: str | None = PAPER_FLOW) -> None:
    """Add --flow."""
    parser.add_argument(
        "--flow",
        choices=tuple(FLOWS),
        default=default,
        help="order of contraction: bidirectional (the paper's), right_to_left, or auto, the order of least modelled "
        "time (default: bidirectional)",
    )


def ranks(text: str) -> dict[str, Any]:
    """Read the argument of --rank, for argparse: fields of ModelConfig."""
    default, *own = text.split(",")
    try:
        fields: dict[str, Any] = {"linear_rank": int(default)}
        pairs = [part.split("=") for part in own]
        if pairs:
            fields["ranks"] = tuple(sorted((name, int(rank)) for name, rank in pairs))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r}: give a rank, and after commas layers with ranks of their own: 12,encoders.0.query=6"
        ) from None
    return fields
