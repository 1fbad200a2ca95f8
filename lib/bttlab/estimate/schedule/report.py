"""A schedule for people and for --json."""

from typing import Any

from bttlab.estimate.schedule.analyse import Schedule
from bttlab.estimate.schedule.census import KINDS, Census
from bttlab.estimate.schedule.latencies import FILE, Clock
from bttlab.estimate.schedule.resources import ASSUMPTIONS, RESOURCES, LoopResources

SHOWN = 8  # recurrences and memories in a table


def to_dict(schedule: Schedule, counted: Census, taken: LoopResources) -> dict[str, Any]:
    """Return what --json prints."""
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
                "name": circle.name,
                "kind": circle.kind,
                "latency": circle.latency,
                "distance": circle.distance,
                "promised": circle.promised,
                "interval": circle.interval,
                "place": schedule.places.text(circle.place),
            }
            for circle in schedule.recurrences
        ],
        "spans": [
            {"memory": span.memory.name, "load": span.load, "store": span.store, "depth": span.depth}
            for span in schedule.spans
        ],
        "resources": taken.to_dict() | {"assumptions": list(ASSUMPTIONS)},
        "violations": [{"kind": wrong.kind, "message": wrong.message} for wrong in schedule.violations],
    }


def to_text(data: dict[str, Any]):
    """Return tables of what `to_dict` gives."""
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

    families: dict[str, list[dict]] = {}
    for port in data["ports"]:
        families.setdefault(port["memory"].split("[")[0], []).append(port)
    table(
        "memories: what an iteration asks of each",
        ("memory", "memories", "words", "bits", "kind", "loads", "stores"),
        [
            [
                name,
                str(len(ports)),
                f"{max(p['words'] for p in ports):,}",
                str(ports[0]["bits"]),
                ports[0]["kind"],
                str(max(p["loads"] for p in ports)),
                str(max(p["stores"] for p in ports)),
            ]
            for name, ports in families.items()
            if ports[0]["kind"] != "register"
        ],
    )
    units = data["operators"]["units"]
    kinds = list(data["operators"]["total"])
    table(
        "operators",
        ("unit", *kinds),
        [[unit, *(f"{counts.get(kind, 0):,}" for kind in kinds)] for unit, counts in units.items()]
        + [["all", *(f"{data['operators']['total'][kind]:,}" for kind in kinds)]],
    )
    worst: dict[tuple, dict] = {}
    for circle in data["recurrences"]:
        worst.setdefault((circle["name"].split("[")[0], circle["kind"]), circle)
    table(
        "recurrences: the slowest",
        ("name", "kind", "cycles", "iterations between", "interval"),
        [
            [
                c["name"],
                c["kind"],
                str(c["latency"]),
                f"{c['distance']}{' promised' if c['promised'] else ''}",
                str(c["interval"]),
            ]
            for c in list(worst.values())[:SHOWN]
        ],
    )
    table(
        "resources of the loop (modelled)",
        ("resource", "low", "likely", "high", "of what the shell leaves"),
        [
            [name, f"{r['low']:,.0f}", f"{r['value']:,.0f}", f"{r['high']:,.0f}", f"{r['share']:.0%}"]
            for name, r in ((name, data["resources"][name]) for name in RESOURCES)
        ],
        caption="; ".join(data["resources"]["assumptions"]),
    )
    wrong = data["violations"]
    parts.append("\n".join([f"violations: {len(wrong)}", *(f"  {w['kind']}: {w['message']}" for w in wrong)]))
    return Group(*parts)
