"""Operators of the loop's body: how many of each kind, and which unit of the machine they belong to."""

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from bttlab.hardware.graph import Node
from bttlab.hardware.places import Place, Places

FLOATING = ("fadd", "fmul", "fdiv", "fsqrt", "fcompare", "fconvert", "ffloor")
INTEGER = ("multiply", "add", "compare", "select", "logic", "shift")
KINDS = (*FLOATING, *INTEGER)
CONTROL = "control"


def unit_of(chain: tuple[Place, ...]) -> tuple[str, int]:
    """Return the unit of a place: the function that the loop's function calls there, and the line of the call.

    Functions whose name ends in `_step` are units; all else is the loop's own.
    """
    for outer, inner in pairwise(chain):
        if inner.function.split("<")[0].endswith("_step"):
            return inner.function.removesuffix("_step"), outer.line
    return CONTROL, 0


@dataclass(frozen=True)
class Census:
    """Operators of an iteration.

    Attributes
    ----------
    units : dict of str to Counter
        Of each unit, by kind. A function that is called in several lines is a unit for each.
    widths : Counter
        Integer operators by (kind, bits).
    """

    units: dict[str, Counter]
    widths: Counter

    @property
    def total(self) -> Counter:
        """Operators of each kind."""
        return sum(self.units.values(), Counter())

    def engines(self, rows: int, lanes: int) -> float:
        """Return how many contraction engines the multipliers of functions called `engine…` are.

        Parameters
        ----------
        rows, lanes : int
            Of one engine, of one multiplier each.
        """
        multipliers = sum(counts["fmul"] for name, counts in self.units.items() if name.startswith("engine"))
        return multipliers / (rows * lanes)


def census(nodes: list[Node], places: Places) -> Census:
    """Count the operators of a loop's body.

    Parameters
    ----------
    nodes : list of Node
    places : Places
    """
    calls: dict[str, list[int]] = {}
    by_unit: dict[tuple[str, int], Counter] = {}
    widths: Counter = Counter()
    for node in nodes:
        if node.kind not in KINDS:
            continue
        unit = unit_of(places.chain(node.instruction.line))
        count = operators(node)
        by_unit.setdefault(unit, Counter())[node.kind] += count
        if node.kind in INTEGER:
            widths[node.kind, node.bits] += count
        if unit[1] not in calls.setdefault(unit[0], []):
            calls[unit[0]].append(unit[1])
    names = {
        (name, line): f"{name} {sorted(lines).index(line)}" if len(lines) > 1 else name
        for name, lines in calls.items()
        for line in lines
    }
    return Census({names[unit]: by_unit[unit] for unit in sorted(by_unit, key=names.__getitem__)}, widths)


def operators(node: Node) -> int:
    """Return how many operators a node is; a choice of n is n - 1 choices of two."""
    if node.kind == "select":
        return node.lanes * (node.choices - 1)
    return node.lanes * (node.gates if node.kind == "logic" else 1)
