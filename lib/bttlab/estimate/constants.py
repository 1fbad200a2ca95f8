"""Constants of the U50 model, with band and source, from data/u50/*.json."""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from bttlab.util.places import ROOT
from bttlab.util.quantities import Quantity, column_metadata

MODEL_VERSION = "u50-4"  # of cycles, resources and power together; do not compare figures of different versions


def modelled(unit: str) -> dict[str, str]:
    """Return the unit and provenance of a column of modelled numbers."""
    return column_metadata(unit, "modelled", MODEL_VERSION)


def band(value: float, unit: str, low: float | None = None, high: float | None = None) -> Quantity:
    """Return a modelled quantity; a bound that is left out is the value itself."""
    return Quantity(
        value, unit, "modelled", MODEL_VERSION, value if low is None else low, value if high is None else high
    )


def constant(entry: Mapping[str, Any]) -> Quantity:
    return band(entry["value"], entry.get("unit", ""), entry["low"], entry["high"])


@cache
def read_data(name: str) -> dict[str, Any]:
    """Return the content of data/u50/NAME.json. It is cached: do not change it."""
    return json.loads((ROOT / "data" / "u50" / f"{name}.json").read_text(encoding="utf-8"))
