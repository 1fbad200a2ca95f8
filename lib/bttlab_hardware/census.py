"""Count the operators of the loop's body by kind and by unit of the machine."""

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from bttlab_hardware.graph import Node
from bttlab_hardware.places import Place, SourceLocations

FLOATING = ("fadd", "fmul", "fdiv", "fsqrt", "fcompare", "fconvert", "ffloor")
INTEGER = ("multiply", "add", "compare", "select", "logic", "shift")
KINDS = (*FLOATING, *INTEGER)
CONTROL = "control"


def unit_of(chain: tuple[Place, ...]) -> tuple[str, int]:
    """Return the unit that a source location belongs to, and the line at which it is called.

    A unit is a function whose name ends in `_step`; everything else belongs to the unit "control", line 0.
    """
    for outer, inner in pairwise(chain):
        if inner.function.split("<")[0].endswith("_step"):
            return inner.function.split("<")[0].removesuffix("_step"), outer.line
    return CONTROL, 0


@dataclass(frozen=True)
class Census:
    """Operators of an iteration, by unit and kind; a function with several calls is a unit for each call."""

    units: dict[str, Counter]

    @property
    def total(self) -> Counter:
        return sum(self.units.values(), Counter())

    def engines(self, rows: int, lanes: int) -> float:
        """Return the number of contraction engines: multipliers of functions called `engine…` per rows x lanes."""
        multipliers = sum(counts["fmul"] for name, counts in self.units.items() if name.startswith("engine"))
        return multipliers / (rows * lanes)


def census(nodes: list[Node], places: SourceLocations) -> Census:
    calls: dict[str, list[int]] = {}
    by_unit: dict[tuple[str, int], Counter] = {}
    for node in nodes:
        if node.kind not in KINDS:
            continue
        unit = unit_of(places.chain(node.instruction.line))
        count = operators(node)
        by_unit.setdefault(unit, Counter())[node.kind] += count
        if unit[1] not in calls.setdefault(unit[0], []):
            calls[unit[0]].append(unit[1])
    names = {
        (name, line): f"{name} {sorted(lines).index(line)}" if len(lines) > 1 else name
        for name, lines in calls.items()
        for line in lines
    }
    return Census({names[unit]: by_unit[unit] for unit in sorted(by_unit, key=names.__getitem__)})


def operators(node: Node) -> int:
    """Return the number of operators of a node; a selection from n inputs counts as n - 1 selections from two."""
    if node.kind == "select":
        return node.lanes * (node.choices - 1)
    return node.lanes * (node.gates if node.kind == "logic" else 1)
