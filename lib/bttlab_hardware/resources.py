"""Resources of the loop: operators from their costs, memories from their geometry, registers from the schedule."""

import re
from collections import Counter
from dataclasses import dataclass
from math import ceil, floor

from bttlab.card.constants import band, constant, read_data
from bttlab.card.facts import U50
from bttlab.estimate.geometry import Blocks, blocks
from bttlab.estimate.recorded import COSTS, RESOURCES
from bttlab.util.places import ROOT
from bttlab.util.quantities import Quantity
from bttlab_hardware.analyse import Schedule
from bttlab_hardware.census import Census, operators
from bttlab_hardware.graph import Node
from bttlab_hardware.memories import Memory
from bttlab_hardware.violations import Violation

# LUTs for each bit of integer logic (low, likely, high): a carry chain takes a LUT6 a bit; three gates of two inputs
# fit in one; a barrel shifter takes a LUT for each bit and level. Selections from two: the best packing of a tree; the
# result of `choice_tables`; a LUT each.
LOGIC_LUTS = {
    "add": (0.5, 1.0, 1.0),
    "compare": (0.25, 0.5, 0.6),
    "select": (0.33, 0, 1.0),
    "logic": (0.2, 0.35, 1.0),
    "shift": (1.0, 2.0, 3.0),
}
# Delays of values: a flip-flop for each bit and cycle. Longer delays are shift registers of LUTs, 16 cycles (two bits a
# LUT) or 32 (one bit), with a flip-flop at the end, one for each cycle in which the value is used. Vivado builds them
# for three cycles or more, or from the length in trainer.cfg.
LINK_SETTINGS = ROOT / "hls_src" / "vitis" / "processor" / "trainer.cfg"
SHIFT_FROM, SHIFT_CYCLES = 3, 32
LUT_INPUTS = 6
ASSUMPTIONS = (
    "operators as PG060 lists them, multipliers with full DSP usage (2 DSP48E2; with maximum usage 3)",
    "values are delayed until each cycle in which they are used: a few cycles in flip-flops (trainer.cfg), more in "
    "shift registers",
    "chained selections from two in a cycle share a LUT of six inputs (UG574: a selection from four is one LUT)",
    "ports to HBM, the other loops, and copies of registers for fan-out are not included",
)


@dataclass(frozen=True)
class LoopResources:
    """Resources of the loop.

    Attributes
    ----------
    parts : dict of str to dict of str to Quantity
        Resources of operators, logic, registers and memories.
    memories : dict of str to Blocks
        Blocks of each variable.
    """

    parts: dict[str, dict[str, Quantity]]
    memories: dict[str, Blocks]

    def total(self, resource: str) -> Quantity:
        """Return the total of a resource, one of `RESOURCES`, over all parts."""
        return sum((part[resource] for part in self.parts.values() if resource in part), band(0, resource))

    def to_dict(self) -> dict:
        """Return the part of the output of --json."""
        budget = read_data("platform")["user_budget"]
        return {
            resource: self.total(resource).to_dict()
            | {
                "budget": budget[resource],
                "share": self.total(resource).value / budget[resource],
                "share_of_card": self.total(resource).value / getattr(U50, resource),
                "parts": {name: part[resource].value for name, part in self.parts.items() if resource in part},
            }
            for resource in RESOURCES
        }


def resources(schedule: Schedule, counted: Census) -> LoopResources:
    """Return the resources of a schedule's loop.

    Parameters
    ----------
    schedule : Schedule
    counted : Census
    """
    blocks_used, by_variable = _memories([port.memory for port in schedule.ports])
    parts = {
        "operators": _operators(counted),
        "logic": _logic(schedule),
        "registers": _registers(schedule),
        "memories": {name: band(getattr(blocks_used, name), name) for name in RESOURCES if hasattr(blocks_used, name)},
    }
    return LoopResources(parts, by_variable)


def of_budget(taken: LoopResources) -> list[Violation]:
    """Return the resources of which the loop takes more than the card's shell leaves free."""
    budget = read_data("platform")["user_budget"]
    return [
        Violation("budget", f"{resource}: the loop takes {taken.total(resource).value:,.0f} of {budget[resource]:,}")
        for resource in RESOURCES
        if taken.total(resource).value > budget[resource]
    ]


def _operators(counted: Census) -> dict[str, Quantity]:
    costs = read_data("operators")["operators"]
    totals = {}
    for resource in ("dsps", "lookup_tables", "flip_flops"):
        total = band(0, resource)
        for kind, count in counted.total.items():
            if kind in COSTS:
                each = constant(costs[COSTS[kind]][resource])
                if (kind, resource) == ("fmul", "dsps"):
                    each = band(each.low, resource, each.low, each.high)  # full usage; PG060
                total += each.scaled(count, resource)
            elif kind == "multiply" and resource == "dsps":
                total += band(count, resource)
        totals[resource] = total
    return totals


def _logic(schedule: Schedule) -> dict[str, Quantity]:
    bits: Counter = Counter()
    for node in schedule.graph.nodes:
        if node.kind in LOGIC_LUTS:
            bits[node.kind] += operators(node) * node.bits
    low, likely, high = (sum(count * LOGIC_LUTS[kind][i] for kind, count in bits.items()) for i in range(3))
    likely += sum(choice_tables(schedule).values())
    return {"lookup_tables": band(likely, "lookup_tables", min(low, likely), high)}


def choice_tables(schedule: Schedule) -> dict[Node, float]:
    """Return the LUTs of each selection; selections that are merged into another one have no entry.

    A LUT6 computes a function of six inputs, or two functions that share five. So a selection is merged with one of its
    inputs if that is a selection of the same width in the same cycle, nothing else uses it, and the data and conditions
    of both have at most six inputs. If two bits of the result need only five inputs, they share a LUT. A selection by
    an index takes a LUT for three choices.

    Parameters
    ----------
    schedule : Schedule
    """
    graph, start = schedule.graph, schedule.times.start
    used: Counter = Counter(other for node in graph.nodes for other in node.inputs)
    used.update([source for source, _ in graph.back] + graph.exits)
    data: dict[Node, set] = {}
    by: dict[Node, set] = {}
    look_up_tables: dict[Node, float] = {}
    for node in graph.nodes:
        if node.kind != "select":
            continue
        width = node.lanes * node.bits
        if node.instruction.opcode not in ("select", "phi"):
            look_up_tables[node] = width * max(0.5, (node.choices - 1) / 3)
            continue
        chosen = node.instruction.operands[node.instruction.opcode == "select" :]
        data[node] = {graph.node(value) for value in chosen} - {None}
        by[node] = set(node.inputs) - data[node]
        for one in sorted(data[node] & look_up_tables.keys(), key=lambda n: len(data.get(n, ())) + len(by.get(n, ()))):
            alike = (one.lanes, one.bits, floor(start[one])) == (node.lanes, node.bits, floor(start[node]))
            inside, by_all = data[node] - {one} | data.get(one, set()), by[node] | by.get(one, set())
            if one in data and used[one] == 1 and alike and len(inside) + len(by_all) <= LUT_INPUTS:
                data[node], by[node] = inside, by_all
                del look_up_tables[one]
        look_up_tables[node] = width * (0.5 if 2 * len(data[node]) + len(by[node]) < LUT_INPUTS else 1)
    return look_up_tables


def _registers(schedule: Schedule) -> dict[str, Quantity]:
    """Return the registers between stages: each value is delayed until every cycle in which it is used."""
    times = schedule.times
    used_in: dict[Node, set[int]] = {}
    for node in schedule.graph.nodes:
        for other in node.inputs:
            used_in.setdefault(other, set()).add(floor(times.start[node]))
    for source, phi in schedule.graph.back:
        used_in.setdefault(source, set()).add(floor(times.start[phi]) + schedule.interval)
    flip_flops = sum(node.result_bits * node.cycles for node in schedule.graph.nodes if node.kind == "delay")
    tables, shift_from = 0, shortest_shift()
    for node, cycles in used_in.items():
        if node.kind == "store" or not node.instruction.type or node.instruction.type == "void":
            continue
        if node.kind == "wire" and all(n in used_in for n in node.inputs):
            continue
        bits, since = node.result_bits, floor(times.end[node])
        for cycle in sorted(cycles):
            delay, since = cycle - since, max(cycle, since)
            if 0 < delay < shift_from:
                flip_flops += bits * delay
            elif delay > 0:
                flip_flops += bits
                tables += bits * ceil((delay - 1) / SHIFT_CYCLES) * (0.5 if delay <= SHIFT_CYCLES // 2 else 1)
    return {
        "flip_flops": band(flip_flops, "flip_flops", 0.6 * flip_flops, 1.5 * flip_flops),
        "lookup_tables": band(tables, "lookup_tables", 0.6 * tables, 1.2 * tables),
    }


def shortest_shift() -> int:
    """Return the fewest cycles of a delay that is a shift register: the recipe's setting for Vivado (UG901: else 3)."""
    setting = re.search(r"SHREG_MIN_SIZE=(\d+)", LINK_SETTINGS.read_text(encoding="utf-8"))
    return int(setting[1]) if setting else SHIFT_FROM


def _memories(memories: list[Memory]) -> tuple[Blocks, dict[str, Blocks]]:
    by_variable: dict[str, Blocks] = {}
    for memory in memories:
        if memory.implementation == "argument":
            continue
        binding = {"register": "registers"}.get(memory.implementation, memory.implementation)
        by_variable[memory.variable] = by_variable.get(memory.variable, Blocks()) + blocks(
            binding, memory.width, memory.words
        )
    return sum(by_variable.values(), Blocks()), by_variable
