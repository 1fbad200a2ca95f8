"""Figures that tell where they come from, and their JSON."""

import json
import math
from dataclasses import dataclass
from typing import Any

from bttlab.errors import BttlabError


class FigureError(BttlabError):
    """A figure that does not tell where it comes from."""


@dataclass(frozen=True)
class Figure:
    """A number, or None, that tells where it comes from.

    Attributes
    ----------
    value : float or None
    unit : str
    provenance : str or None
        "measured", "modelled" or "published"; None where there is no value.
    how : str
        The meter, model or source; where there is no value, the reason.
    """

    value: float | None
    unit: str
    provenance: str | None
    how: str

    def __post_init__(self) -> None:
        if (self.value is None) != (self.provenance is None):
            raise FigureError(f"value {self.value!r} with provenance {self.provenance!r}: one needs the other")
        if self.value is not None and not math.isfinite(self.value):
            raise FigureError(f"value {self.value!r}: it must be finite, or null with the reason")

    @classmethod
    def measured(cls, value: float, unit: str, how: str) -> "Figure":
        """Return what a meter said."""
        return cls(**measured(value, unit, how))

    @classmethod
    def missing(cls, unit: str, reason: str) -> "Figure":
        """Return what nothing measured."""
        return cls(None, unit, None, reason)


def measured(value: float | list[float], unit: str, how: str) -> dict[str, Any]:
    """Return a measured figure, or a row of them, together with its unit and meter."""
    return {"value": value} | told(unit, "measured", how)


def told(unit: str, provenance: str, how: str) -> dict[str, str]:
    """Return what is said of a column of figures."""
    return {"unit": unit, "provenance": provenance, "how": how}


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
