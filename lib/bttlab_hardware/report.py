"""A schedule as tables and as JSON."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from bttlab_hardware.analyse import Schedule
from bttlab_hardware.census import KINDS, Census
from bttlab_hardware.latencies import FILE

SHOWN = 8  # recurrences in a table
RECURRENCE = ("name", "kind", "latency", "distance", "promised", "interval")


def to_dict(schedule: Schedule, counted: Census) -> dict[str, Any]:
    constants = schedule.constants
    engines = {}
    if {"ROWS", "LANES"} <= constants.keys():
        engines = {"engines": counted.engines(constants["ROWS"], constants["LANES"])}
    return {
        "provenance": "modelled",
        "how": f"clang's IR of the synthesis source, scheduled with {FILE.name}; nothing was synthesised",
        "loop": schedule.place,
        "clock_mhz": schedule.clock_mhz,
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
        "operators": {unit: dict(counts) for unit, counts in counted.units.items()},
        "recurrences": [
            {name: getattr(recurrence, name) for name in RECURRENCE} | {"place": schedule.places.text(recurrence.place)}
            for recurrence in schedule.recurrences
        ],
        "spans": [
            {"memory": span.memory.name, "load": span.load, "store": span.store, "depth": span.depth}
            for span in schedule.spans
        ],
        "violations": [{"kind": wrong.kind, "message": wrong.message} for wrong in schedule.violations],
    }


def to_text(data: dict[str, Any]):
    from rich.console import Group

    latency = f" (LATENCY {data['latency']})" if data["latency"] else ""
    head = (
        f"{data['loop']}: an iteration every {data['interval']} cycle(s), {data['stages']} stages, "
        f"depth {data['depth']}{latency}, {data['clock_mhz']} MHz"
    )
    families: dict[tuple, int] = {}
    for port in data["ports"]:
        if port["kind"] != "register":
            key = (_family(port["memory"]), *list(port.values())[1:])
            families[key] = families.get(key, 0) + 1
    memories = _table(
        "memories: accesses of an iteration",
        ("memory", "words", "bits", "kind", "loads", "stores", "memories"),
        ([*map(str, key), str(count)] for key, count in families.items()),
    )
    units = data["operators"]
    operators = _table(
        "operators",
        ("kind", *units),
        ([kind, *(f"{counts.get(kind, 0):,}" for counts in units.values())] for kind in KINDS),
    )
    slowest: dict[tuple, dict] = {}
    for recurrence in data["recurrences"]:
        slowest.setdefault((_family(recurrence["name"]), recurrence["kind"], recurrence["distance"]), recurrence)
    columns = {"kind": "kind", "latency": "cycles", "distance": "iterations between", "interval": "interval"}
    recurrences = _table(
        "recurrences: the slowest",
        ("name", *columns.values()),
        ([one["name"], *(str(one[column]) for column in columns)] for one in list(slowest.values())[:SHOWN]),
    )
    wrong = data["violations"]
    end = "\n".join([f"violations: {len(wrong)}", *(f"  {w['kind']}: {w['message']}" for w in wrong)])
    return Group(head, memories, operators, recurrences, end)


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]):
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left")
    for row in rows:
        table.add_row(*row)
    return table


def _family(name: str) -> str:
    """Return the common name of memories whose names differ by a number only."""
    return re.sub(r"_\d+$", "_*", name.split("[")[0])
