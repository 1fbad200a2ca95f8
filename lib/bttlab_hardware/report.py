"""A schedule as tables and as JSON."""

import re
from typing import Any

from bttlab.estimate.recorded import RESOURCES
from bttlab_hardware.analyse import Schedule
from bttlab_hardware.census import KINDS, Census
from bttlab_hardware.latencies import FILE, Clock
from bttlab_hardware.resources import ASSUMPTIONS, LoopResources

SHOWN = 8  # recurrences and memories in a table


def to_dict(schedule: Schedule, counted: Census, taken: LoopResources) -> dict[str, Any]:
    """Return the output of --json."""
    constants = schedule.constants
    engines = {}
    if {"ROWS", "LANES"} <= constants.keys():
        engines = {"engines": counted.engines(constants["ROWS"], constants["LANES"])}
    return {
        "provenance": "modelled",
        "how": f"clang's IR of the synthesis source, scheduled with {FILE.name}; nothing was synthesised",
        "loop": schedule.place,
        "clock_mhz": schedule.clock_mhz,
        "logic_ns_a_cycle": Clock(schedule.clock_mhz).budget,
        "interval": schedule.interval,
        "stages": schedule.stages,
        "depth": schedule.depth,
        "latency": constants.get("LATENCY"),
        **engines,
        "ports": [
            {
                "memory": port.memory.name,
                "words": port.memory.words,
                "bits": port.memory.width,
                "kind": port.memory.implementation,
                "loads": port.loads,
                "stores": port.stores,
            }
            for port in schedule.ports
        ],
        "operators": {
            "total": {kind: counted.total[kind] for kind in KINDS if counted.total[kind]},
            "units": {unit: dict(counts) for unit, counts in counted.units.items()},
            "widths": {f"{kind} {bits}": count for (kind, bits), count in sorted(counted.widths.items())},
        },
        "recurrences": [
            {
                "name": recurrence.name,
                "kind": recurrence.kind,
                "latency": recurrence.latency,
                "distance": recurrence.distance,
                "promised": recurrence.promised,
                "interval": recurrence.interval,
                "place": schedule.places.text(recurrence.place),
            }
            for recurrence in schedule.recurrences
        ],
        "spans": [
            {"memory": span.memory.name, "load": span.load, "store": span.store, "depth": span.depth}
            for span in schedule.spans
        ],
        "resources": taken.to_dict() | {"assumptions": list(ASSUMPTIONS)},
        "violations": [{"kind": wrong.kind, "message": wrong.message} for wrong in schedule.violations],
    }


def to_text(data: dict[str, Any]):
    """Return the result of `to_dict` as tables."""
    from rich.console import Group
    from rich.table import Table

    latency = f" (LATENCY {data['latency']})" if data["latency"] else ""
    lines = [
        f"{data['loop']}: an iteration every {data['interval']} cycle(s), {data['stages']} stages, "
        f"depth {data['depth']}{latency}, {data['clock_mhz']} MHz",
        *([f"contraction engines, by their multipliers: {data['engines']:g}"] if "engines" in data else []),
    ]
    parts: list[Any] = ["\n".join(lines)]

    def table(title: str, columns: tuple[str, ...], rows: list[list[str]], caption: str = "") -> None:
        made = Table(title=title, title_justify="left", caption=caption or None)
        for i, column in enumerate(columns):
            made.add_column(column, justify="right" if i else "left")
        for row in rows:
            made.add_row(*row)
        parts.append(made)

    families: dict[tuple, list[dict]] = {}
    for port in data["ports"]:
        if port["kind"] != "register":
            shape = (port["words"], port["bits"], port["kind"], port["loads"], port["stores"])
            families.setdefault((_family(port["memory"]), *shape), []).append(port)
    table(
        "memories: accesses of an iteration",
        ("memory", "memories", "words", "bits", "kind", "loads", "stores"),
        [
            [name, str(len(ports)), f"{words:,}", str(bits), kind, str(loads), str(stores)]
            for (name, words, bits, kind, loads, stores), ports in families.items()
        ],
    )
    units = data["operators"]["units"]
    table(
        "operators",
        ("kind", *units, "all"),
        [
            [kind, *(f"{counts.get(kind, 0):,}" for counts in units.values()), f"{total:,}"]
            for kind, total in data["operators"]["total"].items()
        ],
    )
    worst: dict[tuple, dict] = {}
    for recurrence in data["recurrences"]:
        worst.setdefault((_family(recurrence["name"]), recurrence["kind"], recurrence["distance"]), recurrence)
    table(
        "recurrences: the slowest",
        ("name", "kind", "cycles", "iterations between", "interval"),
        [
            [
                recurrence["name"],
                recurrence["kind"],
                str(recurrence["latency"]),
                f"{recurrence['distance']}{' promised' if recurrence['promised'] else ''}",
                str(recurrence["interval"]),
            ]
            for recurrence in list(worst.values())[:SHOWN]
        ],
    )
    resources = {name: data["resources"][name] for name in RESOURCES}
    parts_of = list(dict.fromkeys(part for one in resources.values() for part in one["parts"]))
    table(
        "resources of the loop (modelled)",
        ("resource", "low", "likely", "high", "of budget", *parts_of),
        [
            [
                name,
                *(f"{one[bound]:,.0f}" for bound in ("low", "value", "high")),
                f"{one['share']:.0%}",
                *(f"{one['parts'][part]:,.0f}" if part in one["parts"] else "" for part in parts_of),
            ]
            for name, one in resources.items()
        ],
        caption="; ".join(data["resources"]["assumptions"]),
    )
    wrong = data["violations"]
    parts.append("\n".join([f"violations: {len(wrong)}", *(f"  {w['kind']}: {w['message']}" for w in wrong)]))
    return Group(*parts)


def _family(name: str) -> str:
    """Return the common name of memories whose names differ by a number only."""
    return re.sub(r"_\d+$", "_*", name.split("[")[0])
