"""Compare the sizes of dense and tensor models (arXiv 2501.06663, table III)."""

import argparse
from typing import Any

from bttlab.commands import Outcome, models


def add_arguments(parser: argparse.ArgumentParser) -> None:
    models.add_model(parser, models.SEVERAL)


def run(options: argparse.Namespace) -> Outcome:
    from rich.table import Table

    from bttlab.model.size import ModelSize, model_sizes

    def size_of(model: Any) -> ModelSize:
        if models.is_module(options):
            return ModelSize(None, model.dense_parameters, model.parameters_count)
        return model_sizes([model.encoders], model)[0]

    sizes: Any = [(model, size_of(model)) for model in models.models_of(options, models.SEVERAL)]
    table = Table(caption="FP32, 4 bytes a parameter; MB = 10^6 bytes")
    for title in ("model", "dense parameters", "MB", "tensor parameters", "MB", "ratio"):
        table.add_column(title, justify="right")
    for model, size in sizes:
        table.add_row(
            model.title,
            f"{size.dense_parameters:,}",
            f"{size.dense_megabytes:.1f}",
            f"{size.tensor_parameters:,}",
            f"{size.tensor_megabytes:.2f}",
            f"{size.compression:.1f}",
        )
    figures = ("dense_parameters", "dense_megabytes", "tensor_parameters", "tensor_megabytes", "compression")
    data = {
        "provenance": "modelled",
        "how": "shapes of the parameters, 4 bytes each (FP32); a megabyte is 10^6 bytes",
        "sizes": [model.identity | {name: getattr(size, name) for name in figures} for model, size in sizes],
    }
    return Outcome(data, table)
