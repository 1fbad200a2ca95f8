"""Constants of the U50 model, each with its band and source: data/u50/*.json."""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from bttlab.places import ROOT
from bttlab.quantities import Quantity, column_metadata

MODEL_VERSION = "u50-3"  # of cycles, resources and power together; figures of different versions do not compare


def modelled(unit: str) -> dict[str, str]:
    """Return unit and provenance of this model's numbers."""
    return column_metadata(unit, "modelled", MODEL_VERSION)


def band(value: float, unit: str, low: float | None = None, high: float | None = None) -> Quantity:
    """Return a modelled quantity; without bounds, one that is exact given the source."""
    return Quantity(
        value, unit, "modelled", MODEL_VERSION, value if low is None else low, value if high is None else high
    )


def constant(entry: Mapping[str, Any]) -> Quantity:
    """Return an entry of the JSON files."""
    return band(entry["value"], entry.get("unit", ""), entry["low"], entry["high"])


@cache
def read_data(name: str) -> dict[str, Any]:
    """Return data/u50/NAME.json; not to be changed."""
    return json.loads((ROOT / "data" / "u50" / f"{name}.json").read_text(encoding="utf-8"))
