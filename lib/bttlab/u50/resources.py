"""LUTs, flip-flops, DSPs and memory blocks of the kernel, from the operators and arrays it instantiates.

An estimate before synthesis: operators by their documented cost, control by the number of loops and ports, memory by
the memory map. Every constant stands in data/u50/operators.json with its source and band. It assumes that each unit is
instantiated once, and that Vitis HLS shares the operators of the loops within one function, which run one after the
other.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from bttlab.model.config import ModelConfig
from bttlab.u50.constants import Band, constant, modelled, read_data
from bttlab.u50.facts import U50
from bttlab.u50.hardware import HardwareConfig
from bttlab.u50.kernel import TRAIN_KERNEL
from bttlab.u50.memory_map import OnChipArray, memory_map, total_blocks
from bttlab.u50.operators import units

RESOURCES = {
    "lookup_tables": "LUTs",
    "flip_flops": "flip-flops",
    "dsps": "DSPs",
    "bram36": "BRAM36",
    "uram": "UltraRAM blocks",
}
OPERAND_BITS = 32
ARITHMETIC = ("add", "multiply", "divide", "square_root")
TARGET = 0.70  # of the budget: what routes at 200 MHz without a fight


@dataclass(frozen=True)
class Part:
    """What one unit, or one kind of overhead, takes."""

    name: str
    operators: dict[str, int]
    lookup_tables: Band
    flip_flops: Band
    dsps: Band
    bram36: Band
    uram: Band


@dataclass(frozen=True)
class Resources:
    """What the kernel takes of what the shell leaves to it.

    Attributes
    ----------
    parts : tuple of Part
    """

    parts: tuple[Part, ...]

    def total(self, resource: str) -> Band:
        """Return what all parts take of a resource, one of `RESOURCES`."""
        return sum((getattr(part, resource) for part in self.parts), _nothing(resource))

    def utilisation(self, resource: str) -> float:
        """Return the total over what the shell leaves to kernels: what v++ reports as part of the user budget."""
        return self.total(resource).mid / budget(resource)

    @property
    def excess(self) -> dict[str, float]:
        """By how much each resource that does not suffice is exceeded."""
        totals = {resource: self.total(resource).mid - budget(resource) for resource in RESOURCES}
        return {resource: value for resource, value in totals.items() if value > 0}

    @property
    def operators(self) -> Counter:
        """Operators of each kind."""
        counts: Counter = Counter()
        for part in self.parts:
            counts.update(part.operators)
        return counts

    def to_dict(self) -> dict[str, Any]:
        """Return what --json prints."""
        return {
            "platform": read_data("platform")["name"],
            "kernel": {
                resource: self.total(resource).to_dict()
                | {"budget": budget(resource), "utilisation": self.utilisation(resource)}
                for resource in RESOURCES
            },
            "shell": {r: {"value": card(r) - budget(r)} | {"unit": RESOURCES[r]} | _PUBLISHED for r in RESOURCES},
            "operators": dict(self.operators),
            "parts": [
                {"name": part.name}
                | {resource: getattr(part, resource).mid for resource in RESOURCES}
                | modelled("blocks, LUTs, flip-flops")
                for part in self.parts
            ],
        }


_PUBLISHED = {"provenance": "published", "source": "data/u50/platform.json, facts.json"}


def budget(resource: str) -> int:
    """Return what the shell leaves to kernels (published)."""
    return read_data("platform")["user_budget"][resource]


def card(resource: str) -> int:
    """Return what the FPGA has (published)."""
    return getattr(U50, resource)


def resources(model: ModelConfig, hardware: HardwareConfig, arrays: Iterable[OnChipArray] | None = None) -> Resources:
    """Return what the kernel for a model takes.

    Parameters
    ----------
    model : ModelConfig
    hardware : HardwareConfig
    arrays : iterable of OnChipArray, optional
        The memory map, if it is known already.
    """
    arrays = list(memory_map(model, hardware) if arrays is None else arrays)
    parts = []
    for unit in units(hardware):
        operators = dict(unit.instances)
        parts.append(
            _part(
                unit.name,
                operators,
                lookup_tables=_of(operators, "lookup_tables") + _overhead("loop_lookup_tables", unit.loops),
                flip_flops=_of(operators, "flip_flops")
                + _overhead("loop_flip_flops", unit.loops)
                + _overhead(
                    "operand_register_flip_flops", 2 * OPERAND_BITS * sum(operators.get(n, 0) for n in ARITHMETIC)
                ),
                dsps=_of(operators, "dsps"),
            )
        )
    ports = sum(argument.is_pointer for argument in TRAIN_KERNEL.arguments)
    parts.append(
        _part(
            "ports",
            lookup_tables=_overhead("port_lookup_tables", ports) + _overhead("control_port_lookup_tables"),
            flip_flops=_overhead("port_flip_flops", ports) + _overhead("control_port_flip_flops"),
            bram36=_overhead("port_bram36", ports),
        )
    )
    found = total_blocks(arrays)
    wires = sum(array.width * array.banks for array in arrays if array.binding in ("bram", "uram"))
    parts.append(
        _part(
            "memory",
            lookup_tables=_exactly(found.lookup_tables, "lookup_tables")
            + _overhead("array_port_lookup_tables", 2 * wires),
            flip_flops=_exactly(found.flip_flops, "flip_flops") + _exactly(wires, "flip_flops"),
            bram36=_exactly(found.bram36, "bram36"),
            uram=_exactly(found.uram, "uram"),
        )
    )
    return Resources(tuple(parts))


def _part(name: str, operators: dict[str, int] | None = None, **found: Band) -> Part:
    nothing = {resource: _nothing(resource) for resource in RESOURCES}
    return Part(
        name, operators or {}, **nothing | {resource: nothing[resource] + found[resource] for resource in found}
    )


def _of(operators: dict[str, int], resource: str) -> Band:
    costs = read_data("operators")["operators"]
    return sum((constant(costs[name][resource]).scaled(count) for name, count in operators.items()), _nothing(resource))


def _overhead(name: str, count: float = 1) -> Band:
    return constant(read_data("operators")["overheads"][name]).scaled(count)


def _nothing(resource: str) -> Band:
    return _exactly(0, resource)


def _exactly(value: float, resource: str) -> Band:
    return Band(value, value, value, RESOURCES[resource])
