"""Check the pragmas of the source: a pragma or option that the analysis does not know is a violation."""

import re
from collections.abc import Iterable

from bttlab_hardware.memories import Port
from bttlab_hardware.pragmas import Pragma
from bttlab_hardware.violations import Violation

# For each pragma: options with their allowed values (None: any), and options without a value.
_ANY = None
KNOWN: dict[str, tuple[dict[str, set[str] | None], set[str]]] = {
    "PIPELINE": ({"ii": _ANY}, set()),
    "INLINE": ({}, {"off"}),
    "LATENCY": ({"min": _ANY, "max": _ANY}, set()),
    "UNROLL": ({}, set()),
    "ARRAY_PARTITION": ({"variable": _ANY, "dim": _ANY}, {"complete"}),
    "BIND_STORAGE": (
        {"variable": _ANY, "type": {"ram_s2p"}, "impl": {"uram", "bram", "lutram"}, "latency": {"1", "2", "3"}},
        set(),
    ),
    "DEPENDENCE": (
        {"variable": _ANY, "type": {"inter"}, "direction": {"raw"}, "distance": _ANY, "dependent": {"true"}},
        set(),
    ),
    "INTERFACE": ({"port": _ANY, "bundle": _ANY, "offset": {"slave"}}, {"s_axilite", "m_axi"}),
}
NEEDED = {"BIND_STORAGE": ("type", "impl", "latency"), "DEPENDENCE": ("distance",)}
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")


def of_pragmas(pragmas: Iterable[Pragma], preprocessed: str) -> list[Violation]:
    """Return a violation for each unknown pragma, option, value or variable, and for each missing option.

    A variable is known if it occurs in the source outside of pragmas.
    """
    code = "\n".join(line for line in preprocessed.splitlines() if not line.lstrip().startswith("#"))
    names = set(_IDENTIFIER.findall(code))
    wrong = []
    for pragma in pragmas:
        faults = _faults(pragma)
        if pragma.variable and pragma.variable not in names:
            faults.append(f"variable={pragma.variable}, which the source does not have")
        wrong += [Violation("pragma", f"{pragma.name} at {pragma.place}: {fault}") for fault in faults]
    return wrong


def _faults(pragma: Pragma) -> list[str]:
    if pragma.name not in KNOWN:
        return ["the analysis does not know this pragma"]
    values, words = KNOWN[pragma.name]
    faults = [f"{word} is not known" for word in sorted(pragma.words - words)]
    for name, value in pragma.values.items():
        allowed = values.get(name, set())
        if allowed is not _ANY and value.lower() not in allowed:
            faults.append(f"{name}={value} is not known")
    return faults + [f"{name}= is missing" for name in NEEDED.get(pragma.name, ()) if name not in pragma.values]


def of_loop(inside: list[Pragma], outside: list[Pragma], delays: int, constants: dict[str, int]) -> list[Violation]:
    """Return violations of the loop's pragmas: an II other than 1, and delay blocks that are no separate blocks.

    `delays` is the number of delay blocks that the loop calls.
    """
    wrong = []
    for pragma in inside:
        if pragma.name == "PIPELINE":
            asked = pragma.values.get("ii", "1")
            if (int(asked) if asked.isdigit() else constants.get(asked)) != 1:
                wrong.append(Violation("pragma", f"PIPELINE at {pragma.place}: II={asked}, the machine needs II=1"))
    blocks = sum(pragma.name == "LATENCY" for pragma in [*inside, *outside])
    if blocks != delays:
        message = f"{blocks} functions have a LATENCY, and {delays} of them are separate blocks of the loop"
        wrong.append(Violation("block", message + ": the others' delays are lost"))
    return wrong


def of_promises(pragmas: list[Pragma], ports: list[Port]) -> list[Violation]:
    """Return a violation for each DEPENDENCE of a variable that is no memory of the loop."""
    memories = {port.memory.variable for port in ports}
    return [
        Violation("promise", f"DEPENDENCE at {p.place}: {p.variable} is no memory of the loop")
        for p in pragmas
        if p.name == "DEPENDENCE" and p.variable not in memories
    ]
