"""Compare the sizes of dense and tensor transformers (arXiv 2501.06663, table III)."""

import argparse
from dataclasses import asdict

from bttlab.commands import Outcome, models

ENCODERS = (2, 4, 6)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    models.add_model(parser, ENCODERS)


def run(options: argparse.Namespace) -> Outcome:
    """Run the command."""
    from rich.table import Table

    from bttlab.model import model_sizes

    sizes = [size for model in models.models_of(options, ENCODERS) for size in model_sizes([model.encoders], model)]
    table = Table(caption="FP32, 4 bytes a parameter; MB = 10^6 bytes")
    for title in ("encoders", "dense parameters", "MB", "tensor parameters", "MB", "ratio"):
        table.add_column(title, justify="right")
    for size in sizes:
        table.add_row(
            str(size.encoders),
            f"{size.dense_parameters:,}",
            f"{size.dense_megabytes:.1f}",
            f"{size.tensor_parameters:,}",
            f"{size.tensor_megabytes:.2f}",
            f"{size.compression:.1f}",
        )
    data = {
        "provenance": "modelled",
        "how": "shapes of the parameters, 4 bytes each (FP32); a megabyte is 10^6 bytes",
        "sizes": [asdict(size) | {"compression": size.compression} for size in sizes],
    }
    return Outcome(data, table)
