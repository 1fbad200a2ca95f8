"""Resources of the kernel: the machine's loop, and its ports to the card's memory.

They are the same for every model, because a model is a program. Operators are those of the source, at the documented
costs of AMD's cores; logic and registers are Yosys' count of the loop's Verilog; memories follow from their geometry.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from bttlab.estimate.constants import band, constant, read_data
from bttlab.estimate.facts import U50, CardFacts
from bttlab.estimate.geometry import Blocks
from bttlab.estimate.recorded import COSTS, RESOURCES, MachineRecord, OnChipMemory
from bttlab.estimate.synthesis import cost_at, synthesised, without_cores
from bttlab.util.quantities import Quantity

PORTS = 4  # to the card's memory, of the kernel (`bttlab.card.kernel.TRAINER_KERNEL`)
# Entries of data/u50/operators.json for each 512-bit port, and for the port of the registers.
_OF_A_PORT = {"lookup_tables": "port_lookup_tables", "flip_flops": "port_flip_flops", "bram36": "port_bram36"}
_OF_CONTROL = {"lookup_tables": "control_port_lookup_tables", "flip_flops": "control_port_flip_flops"}


@dataclass(frozen=True)
class Resources:
    """Resources of the kernel on a card, and their share of what its shell leaves to kernels."""

    # use of each of `RESOURCES`, by part: operators, logic, registers, memories, ports, memory controller
    parts: dict[str, dict[str, Quantity]]
    card: CardFacts = U50

    def total(self, resource: str) -> Quantity:
        return sum(self.parts[resource].values(), band(0, RESOURCES[resource]))

    def utilisation(self, resource: str) -> float | None:
        """Return the total as a share of the shell's user budget, which v++ also reports; None if that is unknown."""
        if self.card.budget is None:
            return None
        return self.total(resource).value / self.card.budget[resource]

    def share_of_device(self, resource: str) -> float:
        """Return the total as a share of the whole device: less than its share of what the shell leaves."""
        return self.total(resource).value / getattr(self.card, resource)

    @property
    def excess(self) -> dict[str, float]:
        """By how much the total exceeds the budget, or the device if that is unknown, for each exceeded resource."""
        room = {resource: getattr(self.card, resource) for resource in RESOURCES} | dict(self.card.budget or {})
        excess = {resource: self.total(resource).value - room[resource] for resource in RESOURCES}
        return {resource: value for resource, value in excess.items() if value > 0}

    @property
    def fits(self) -> bool | None:
        """Whether the card has the resources; None if that depends on what the shell takes, and it is unknown."""
        if self.excess:
            return False
        return None if self.card.budget is None else True

    @property
    def least_slrs(self) -> int:
        """Least number of the device's SLRs that the kernel spans, if all were free."""
        return max(ceil(self.share_of_device(resource) * self.card.slrs) for resource in RESOURCES)

    def to_dict(self) -> dict[str, Any]:
        card, budget = self.card, self.card.budget
        published = {"provenance": "published", "source": f"data/cards/{card.short_name.lower()}.json"}
        return {
            "platform": card.platform,
            "kernel": {
                resource: self.total(resource).to_dict()
                | {"budget": budget and budget[resource], "utilisation": self.utilisation(resource)}
                | {"device": getattr(card, resource), "of_the_device": self.share_of_device(resource)}
                | {"parts": {part: taken.value for part, taken in self.parts[resource].items()}}
                for resource in RESOURCES
            },
            "shell": {
                resource: {"value": budget and getattr(card, resource) - budget[resource], "unit": unit} | published
                for resource, unit in RESOURCES.items()
            },
        }


def resources(record: MachineRecord, card: CardFacts = U50) -> Resources:
    """Return the kernel's resources on a card: the machine is the same on all, the memory controller is not."""
    overheads, counted = read_data("operators")["overheads"], without_cores(synthesised(record.clock_mhz))
    operators = operator_use(sum((Counter(counts) for counts in record.units.values()), Counter()), record.clock_mhz)
    memories = memory_use(record.memories)
    yosys = constant(read_data("operators")["yosys"])
    parts = {}
    for resource, unit in RESOURCES.items():
        taken = {"operators": operators.get(resource), "memories": memories.get(resource)}
        for part, count in counted.get(resource, {}).items():
            taken[part] = yosys.scaled(count, unit)
        if resource in _OF_A_PORT:
            taken["ports"] = constant(overheads[_OF_A_PORT[resource]]).scaled(PORTS, unit)
        if resource in _OF_CONTROL:
            taken["ports"] += _in(constant(overheads[_OF_CONTROL[resource]]), resource)
        if card.memory_controller and card.memory_controller[resource]:
            taken["memory controller"] = band(card.memory_controller[resource], unit)
        parts[resource] = {part: _in(quantity, resource) for part, quantity in taken.items() if quantity}
    return Resources(parts, card)


def operator_use(counts: Mapping[str, int], clock_mhz: float) -> dict[str, Quantity]:
    """Return the DSPs, LUTs and flip-flops of operators, by their number of each kind, in the schedule for a clock."""
    costs, used = read_data("operators")["operators"], {}
    for resource in ("dsps", "lookup_tables", "flip_flops"):
        total = band(counts.get("multiply", 0) if resource == "dsps" else 0, resource)  # an integer product: a DSP
        for kind in sorted(counts.keys() & COSTS.keys()):
            each = constant(cost_at(costs[COSTS[kind]], clock_mhz)[resource])
            if (kind, resource) == ("fmul", "dsps"):
                each = band(each.low, resource, each.low, each.high)  # full usage (PG060): hls_src/vitis/operators.tcl
            total += each.scaled(counts[kind], resource)
        used[resource] = total
    return used


def memory_use(memories: Iterable[OnChipMemory]) -> dict[str, Quantity]:
    """Return the memory blocks, and LUTs as memory, of on-chip memories."""
    blocks = sum((memory.blocks for memory in memories), Blocks())
    return {name: band(getattr(blocks, name), name) for name in ("bram36", "uram", "lookup_tables")}


def _in(quantity: Quantity, resource: str) -> Quantity:
    return quantity.scaled(1, RESOURCES[resource])


def budget(resource: str) -> int:
    """Return how much of a resource the U50's shell leaves to kernels (published)."""
    assert U50.budget is not None  # data/cards/u50.json
    return U50.budget[resource]
