"""Resources of the kernel: the analysed loop of the machine, and its ports to HBM.

They are the same for every model, because a model is a program.
"""

from dataclasses import dataclass
from typing import Any

from bttlab.card.constants import band, constant, read_data
from bttlab.card.facts import U50
from bttlab.card.kernel import TRAINER_KERNEL
from bttlab.estimate.recorded import RESOURCES, MachineRecord
from bttlab.estimate.synthesis import synthesised, with_amd_cores
from bttlab.util.quantities import Quantity

_PUBLISHED = {"provenance": "published", "source": "data/u50/platform.json, facts.json"}
# Entries of data/u50/operators.json for each 512-bit port, and for the port of the registers.
_OF_A_PORT = {"lookup_tables": "port_lookup_tables", "flip_flops": "port_flip_flops", "bram36": "port_bram36"}
_OF_CONTROL = {"lookup_tables": "control_port_lookup_tables", "flip_flops": "control_port_flip_flops"}


@dataclass(frozen=True)
class Resources:
    """Resources of the kernel, and their share of the shell's user budget.

    Attributes
    ----------
    parts : dict of str to dict of str to Quantity
        Use of each of `RESOURCES`, by part: operators, logic, registers, memories, ports.
    synthesised : dict of str to float
        Use of each of `RESOURCES`, with Yosys' count of logic, registers and memories.
    """

    parts: dict[str, dict[str, Quantity]]
    synthesised: dict[str, float]

    def total(self, resource: str) -> Quantity:
        """Return the use of a resource by all parts."""
        return sum(self.parts[resource].values(), band(0, RESOURCES[resource]))

    def utilisation(self, resource: str) -> float:
        """Return the total as a share of the shell's user budget, which v++ also reports."""
        return self.total(resource).value / budget(resource)

    @property
    def excess(self) -> dict[str, float]:
        """By how much the total exceeds the budget, for each resource that is exceeded."""
        totals = {resource: self.total(resource).value - budget(resource) for resource in RESOURCES}
        return {resource: value for resource, value in totals.items() if value > 0}

    def to_dict(self) -> dict[str, Any]:
        """Return the output of --json."""
        return {
            "platform": read_data("platform")["name"],
            "kernel": {
                resource: self.total(resource).to_dict()
                | {"budget": budget(resource), "utilisation": self.utilisation(resource)}
                | {"parts": {part: taken.value for part, taken in self.parts[resource].items()}}
                | {"synthesised": self.synthesised[resource]}
                for resource in RESOURCES
            },
            "shell": {
                resource: {"value": getattr(U50, resource) - budget(resource), "unit": unit} | _PUBLISHED
                for resource, unit in RESOURCES.items()
            },
        }


def resources(record: MachineRecord) -> Resources:
    """Return the resources of the kernel.

    Parameters
    ----------
    record : MachineRecord
    """
    overheads = read_data("operators")["overheads"]
    hbm = sum(argument.bank is not None for argument in TRAINER_KERNEL.arguments)
    parts, found, counted = {}, {}, with_amd_cores(synthesised())
    for resource in RESOURCES:
        taken = {part: _in(of_part, resource) for part, of_part in record.parts[resource].items()}
        ports = band(0, RESOURCES[resource])
        if resource in _OF_A_PORT:
            ports += constant(overheads[_OF_A_PORT[resource]]).scaled(hbm, RESOURCES[resource])
        if resource in _OF_CONTROL:
            ports += _in(constant(overheads[_OF_CONTROL[resource]]), resource)
        parts[resource] = taken | ({"ports": ports} if ports.value else {})
        found[resource] = ports.value + counted["in_luts" if resource == "lookup_tables" else resource]
    return Resources(parts, found)


def _in(quantity: Quantity, resource: str) -> Quantity:
    return quantity.scaled(1, RESOURCES[resource])


def budget(resource: str) -> int:
    """Return how much of a resource the shell leaves to kernels (published)."""
    return read_data("platform")["user_budget"][resource]
