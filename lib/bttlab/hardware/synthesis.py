"""Counts of Yosys for the Verilog: data/u50/synthesis.json, which `make synth` writes."""

import json
from collections import Counter

from bttlab.places import ROOT

FILE = ROOT / "data" / "u50" / "synthesis.json"
UNITS = (
    *("control", "dispatch", "engine_0", "engine_1", "nest", "ports", "shuffle", "update", "vector"),
    *("trainer_control", "control_registers", "axi_port"),
)
COPIES = {"axi_port": 4}  # instances of a module in the kernel
IN_LUTS = ("lookup_tables", "shift_registers", "memory_tables")


def synthesised() -> dict[str, Counter]:
    """Return what each module takes, by resource; units without their cores, of which they have the number by name."""
    modules = json.loads(FILE.read_text(encoding="utf-8"))["modules"]
    return {
        name: Counter({kind: n for kind, n in one.items() if kind not in ("sha256", "tool")})
        for name, one in modules.items()
    }


def kernel_total(modules: dict[str, Counter]) -> Counter | None:
    """Return what the whole kernel takes, cores included; None if a unit has not been counted.

    Parameters
    ----------
    modules : dict of str to Counter
        What `synthesised` gives.
    """
    if any(name not in modules for name in UNITS):
        return None
    total: Counter = Counter()
    for name in UNITS:
        for kind, count in modules[name].items():
            times = count * COPIES.get(name, 1)
            if kind in modules:
                total.update({resource: times * n for resource, n in modules[kind].items()})
            else:
                total[kind] += times
    total["in_luts"] = sum(total[kind] for kind in IN_LUTS)
    return total
