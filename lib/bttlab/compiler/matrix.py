"""Matrices of (tokens, features): the values of a model's graph."""

from collections.abc import Mapping
from dataclasses import dataclass

from bttlab.compiler.instruction import Bound
from bttlab.compiler.machine import M

Shapes = Mapping[str, tuple[int, ...]]
INTENT, SLOTS = "intent", "slot"  # losses: of one label for the sample, and of a label for each token but the first


@dataclass(eq=False)
class Matrix:
    name: str
    tokens: Bound  # number of rows
    features: int
    base: "Matrix | None" = None  # the matrix of which this one is a range of rows, from `first` on
    first: int = 0

    @property
    def vectors(self) -> int:
        return -(-self.features // M.LANES)


def core_names(shapes: Shapes, layer: str) -> list[str]:
    """Return the names of a layer's cores; none if it is dense."""
    count = 0
    while f"{layer}.cores.{count}" in shapes:
        count += 1
    return [f"{layer}.cores.{k}" for k in range(count)]
