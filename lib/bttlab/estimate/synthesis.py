"""Resource counts of Yosys for the Verilog: data/u50/synthesis.json, which `make synth` writes."""

import json
from collections import Counter
from pathlib import Path

from bttlab.compiler.machine import M
from bttlab.estimate.constants import read_data
from bttlab.util.places import ROOT

FILE = ROOT / "data" / "u50" / "synthesis.json"
UNITS = ("control", "dispatch", "engine_0", "engine_1", "nest", "ports", "shuffle", "update", "vector")
DEPTH = ("levels", "stage_of_levels", "latency")
IN_LUTS = ("packed_tables", "shift_registers", "ring_tables", "memory_tables")
AMD = {  # the operator of data/u50/operators.json that corresponds to each core
    **{f"fp32_{name}": name for name in ("add", "multiply", "divide", "square_root", "compare")},
    **{f"fp32_{name}": "convert" for name in ("floor", "to_int")},
}
MULTIPLIER, SERIES_7 = "fp32_multiply", "xc7"  # the core that is counted with another family of Yosys, too
LEVEL_CLOCKS = (200, 300)  # MHz: the schedule's clock, and a faster one, for the levels of logic that each allows
LEVEL_NS = 0.3  # of a LUT and its net on UltraScale+ of speed grade -2: the budget of AMD's report_failfast


def levels_at(clock_mhz: float) -> int:
    """Return the levels of logic that fit into a cycle."""
    return int(1e3 / clock_mhz / LEVEL_NS)


def file_of(clock_mhz: float) -> Path:
    """Return the record of the loop that is scheduled for a clock: of 200 MHz or less, or a faster one."""
    return FILE if clock_mhz <= M.CLOCK_MHZ else FILE.with_stem(f"{FILE.stem}_300")


def synthesised(clock_mhz: float = M.CLOCK_MHZ) -> dict[str, Counter]:
    """Return the resources of each module; units exclude their cores, whose numbers they list by name."""
    modules = json.loads(file_of(clock_mhz).read_text(encoding="utf-8"))["modules"]
    return {
        name: Counter({kind: n for kind, n in one.items() if isinstance(n, int | float)})
        for name, one in modules.items()
    }


def with_packed_multipliers(modules: dict[str, Counter]) -> dict[str, Counter]:
    """Return modules with the multiplier as Yosys maps it to the 7 series: registers and partial sums in the DSPs.

    `modules` is the result of `synthesised`, which has none of them in the DSPs.
    """
    packed = json.loads(FILE.read_text(encoding="utf-8"))["modules"][MULTIPLIER][SERIES_7]
    return modules | {MULTIPLIER: Counter(packed)}


def without_cores(modules: dict[str, Counter]) -> dict[str, dict[str, int]]:
    """Return the LUTs and flip-flops of the loop's logic and of its registers, without cores and memories."""
    total = _total(modules, {core: Counter() for core in AMD})
    tables = {"logic": total["packed_tables"], "registers": total["shift_registers"] + total["ring_tables"]}
    return {"lookup_tables": tables, "flip_flops": {"registers": total["flip_flops"]}}


def with_own_cores(modules: dict[str, Counter]) -> Counter:
    """Return the resources of the loop with the cores of hls_src/rtl.

    `modules` is the result of `synthesised`.
    """
    return _total(modules, modules)


def cost_at(operator: dict, clock_mhz: float) -> dict:
    """Return an operator's entry of data/u50/operators.json with the figures of the schedule for a clock."""
    return operator if clock_mhz <= M.CLOCK_MHZ else operator | operator.get("at_300_mhz", {})


def with_amd_cores(modules: dict[str, Counter], clock_mhz: float = M.CLOCK_MHZ) -> Counter:
    """Return the resources of the loop with AMD's FP32 operators instead of the cores, as the schedule models it.

    `modules` is the result of `synthesised` for the same clock.
    """
    costs = read_data("operators")["operators"]
    cores = {}
    for core, operator in AMD.items():
        at_clock = cost_at(costs[operator], clock_mhz)
        cost = {resource: at_clock[resource]["value"] for resource in ("lookup_tables", "flip_flops")}
        full_usage = costs[operator]["dsps"]["low"]  # hls_src/vitis/operators.tcl
        cores[core] = Counter(cost, packed_tables=cost["lookup_tables"], dsps=full_usage)
    return _total(modules, cores)


def _total(modules: dict[str, Counter], cores: dict[str, Counter]) -> Counter:
    total: Counter = Counter()
    for name in UNITS:
        for kind, count in modules[name].items():
            if kind in AMD:
                total.update({resource: count * n for resource, n in cores[kind].items()})
            else:
                total[kind] += count
    for kind in DEPTH:
        del total[kind]
    total["in_luts"] = sum(total[kind] for kind in IN_LUTS)
    return total
