"""Constants of the U50 model, each with its band and source: data/u50/*.json."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from bttlab.places import ROOT

MODEL_VERSION = "u50-3"  # of cycles, resources and power together; figures of different versions do not compare


@dataclass(frozen=True)
class Band:
    """A figure with the bounds that its constants' uncertainty gives it.

    Attributes
    ----------
    low, mid, high : float
    unit : str
    """

    low: float
    mid: float
    high: float
    unit: str

    def __add__(self, other: "Band") -> "Band":
        return Band(self.low + other.low, self.mid + other.mid, self.high + other.high, self.unit)

    def scaled(self, factor: float, unit: str | None = None) -> "Band":
        """Return the band times a factor, in another unit if the factor has one."""
        return Band(self.low * factor, self.mid * factor, self.high * factor, unit or self.unit)

    def to_dict(self) -> dict[str, Any]:
        """Return the band with its provenance."""
        return {"low": self.low, "value": self.mid, "high": self.high} | modelled(self.unit)


def modelled(unit: str) -> dict[str, str]:
    """Return what marks a figure as this model's."""
    return {"unit": unit, "provenance": "modelled", "model": MODEL_VERSION}


def constant(entry: Mapping[str, Any]) -> Band:
    """Return an entry of the JSON files."""
    return Band(entry["low"], entry["value"], entry["high"], entry.get("unit", ""))


@cache
def read_data(name: str) -> dict[str, Any]:
    """Return data/u50/NAME.json; not to be changed."""
    return json.loads((ROOT / "data" / "u50" / f"{name}.json").read_text(encoding="utf-8"))
