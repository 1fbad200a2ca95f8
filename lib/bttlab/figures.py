"""Figures that tell where they come from, and their JSON."""

import json
import math
from typing import Any


def measured(value: float | list[float], unit: str, how: str) -> dict[str, Any]:
    """Return a measured figure, or a row of them, together with its unit and meter."""
    return {"value": value, "unit": unit, "provenance": "measured", "how": how}


def to_json(values: Any, indent: int | None = None) -> str:
    """Return values as JSON; numbers that JSON does not have (NaN, infinity) become null."""
    return json.dumps(_finite(values), indent=indent, allow_nan=False)


def _finite(values: Any) -> Any:
    if isinstance(values, dict):
        return {key: _finite(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [_finite(value) for value in values]
    if isinstance(values, float) and not math.isfinite(values):
        return None
    return values
