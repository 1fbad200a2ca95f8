"""Numbers with unit, provenance and, where their inputs are uncertain, a band; and their JSON."""

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from bttlab.util.errors import BttlabError


class QuantityError(BttlabError, ValueError):
    """A quantity without provenance, or one that is not finite."""


@dataclass(frozen=True)
class Quantity:
    """A number with unit and provenance, or None with a reason.

    Parameters
    ----------
    value : float or None
        The number.
    unit : str
        Such as "s" or "J".
    provenance : {"measured", "modelled", "published", "extrapolated"} or None
        None where there is no value. "extrapolated": a measured step times the number of steps.
    how : str
        The meter, model or source; where there is no value, the reason.
    low, high : float, optional
        The band that the uncertainty of the inputs gives the value.

    Raises
    ------
    QuantityError
        If the value is not finite, or has no provenance.
    """

    value: float | None
    unit: str
    provenance: str | None
    how: str
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        if (self.value is None) != (self.provenance is None):
            raise QuantityError(f"value {self.value!r} with provenance {self.provenance!r}: one needs the other")
        if self.value is not None and not math.isfinite(self.value):
            raise QuantityError(f"value {self.value!r}: it must be finite, or null with the reason")

    def __add__(self, other: "Quantity") -> "Quantity":
        """Add the values and the bands of two quantities that have them, in the same unit."""
        return replace(self, value=self.value + other.value, low=self.low + other.low, high=self.high + other.high)

    def scaled(self, factor: float, unit: str | None = None) -> "Quantity":
        """Return this times a factor, in another unit if the factor has one."""
        bounds = (value if value is None else value * factor for value in (self.value, self.low, self.high))
        return replace(self, **dict(zip(("value", "low", "high"), bounds, strict=True)), unit=unit or self.unit)

    def to_dict(self) -> dict[str, Any]:
        return drop_missing_bands(asdict(self).items())

    @classmethod
    def measured(cls, value: float, unit: str, how: str) -> "Quantity":
        return cls(**measured(value, unit, how))

    @classmethod
    def missing(cls, unit: str, reason: str) -> "Quantity":
        return cls(None, unit, None, reason)


def drop_missing_bands(items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return a dict without `low` and `high` of None: a `dict_factory` of dataclasses.asdict."""
    return {name: value for name, value in items if name not in ("low", "high") or value is not None}


def measured(value: float | list[float], unit: str, how: str) -> dict[str, Any]:
    """Return a measured figure, or a row of them, together with its unit and meter."""
    return {"value": value} | column_metadata(unit, "measured", how)


def column_metadata(unit: str, provenance: str, how: str) -> dict[str, str]:
    """Return unit, provenance and method of a column of figures."""
    return {"unit": unit, "provenance": provenance, "how": how}


def in_digits(value: float) -> str:
    """Return a number as text, to three digits or in full."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def to_json(values: Any, indent: int | None = None) -> str:
    """Return values as JSON; numbers that JSON does not have (NaN, infinity) become null."""
    finite = json.loads(json.dumps(values), parse_constant=lambda _: None)
    return json.dumps(finite, indent=indent)
