"""Violations: parts of the source that HLS rejects, or does not build with initiation interval 1."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from bttlab_hardware.graph import DSP_BITS, Graph, Node, callee
from bttlab_hardware.ir import Function, Instruction
from bttlab_hardware.memories import Access, Memories, Port, Unresolved
from bttlab_hardware.places import SourceLocations
from bttlab_hardware.pragmas import Pragma

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


@dataclass(frozen=True)
class Violation:
    """A violation of a rule of synthesis.

    Its kind is pointer, null, port, call, division, product, operation, loop, recurrence, promise, pragma, block, exit,
    copies or budget.
    """

    kind: str
    message: str


def accesses_of(
    instructions: list[Instruction], memories: Memories, places: SourceLocations
) -> tuple[list[tuple[Instruction, Access]], list[Violation]]:
    """Return the access of every load and store, and violations for those that cannot be resolved."""
    accesses, wrong = [], []
    for instruction in instructions:
        if instruction.opcode in ("load", "store"):
            try:
                accesses.append((instruction, memories.access(instruction)))
            except Unresolved as reason:
                message = f"a {instruction.opcode} goes through {reason} at {places.text(instruction.line)}"
                wrong.append(Violation("pointer", message))
    return accesses, wrong


def of_pointers(function: Function, places: SourceLocations) -> list[Violation]:
    """Return violations for selections between pointers, and comparisons and conversions of pointers, in a function."""
    wrong = []
    for instruction in (i for block in function.blocks.values() for i in block):
        where = places.text(instruction.line)
        if instruction.opcode in ("select", "phi") and instruction.type == "ptr":
            wrong.append(Violation("pointer", f"one of several pointers is selected at {where}"))
        elif instruction.opcode == "icmp" and instruction.operands[0].type == "ptr":
            null = any(o.text == "null" for o in instruction.operands)
            what = "a pointer is tested against null" if null else "two pointers are compared"
            wrong.append(Violation("null" if null else "pointer", f"{what} at {where}"))
        elif instruction.opcode in ("inttoptr", "ptrtoint"):
            wrong.append(Violation("pointer", f"a pointer is made from an integer, or an integer from one, at {where}"))
    return wrong


def of_ports(ports: list[Port], accesses: list[tuple[Instruction, Access]], places: SourceLocations) -> list[Violation]:
    """Return violations for memories with more than one load or more than one store an iteration."""
    wrong = []
    for port in ports:
        for count, opcode in ((port.loads, "load"), (port.stores, "store")):
            if count > 1 and not port.memory.register:
                lines = {places.text(i.line) for i, a in accesses if a.memory == port.memory and i.opcode == opcode}
                message = f"{port.memory.name} has {count} {opcode}s an iteration but one port for them: "
                wrong.append(Violation("port", message + ", ".join(sorted(lines))))
    return wrong


def of_operators(graph: Graph, places: SourceLocations) -> list[Violation]:
    """Return violations for calls, unknown operations, divisions and wide products in the body."""
    return [v for v in (_operator(node, graph, places) for node in graph.nodes) if v is not None]


def _operator(node: Node, graph: Graph, places: SourceLocations) -> Violation | None:
    where = places.text(node.instruction.line)
    if node.kind == "call":
        return Violation("call", f"{callee(node.instruction)} is called and not inlined at {where}")
    if node.kind == "unknown":
        what = f"{node.instruction.opcode} of {node.instruction.type}"
        return Violation("operation", f"{what} at {where}: the machine has no operator for it")
    if node.instruction.opcode in ("load", "store") and "volatile" in node.instruction.text.split():
        return Violation("operation", f"a volatile {node.instruction.opcode} at {where}: a delay block was inlined")
    if node.kind == "divide":
        return Violation("division", f"an integer is divided by something other than a power of two at {where}")
    if node.kind == "multiply":
        sizes = sorted(graph.widths.bits(o) + (not graph.widths.signed(o)) for o in node.instruction.operands)
        if any(size > most for size, most in zip(sizes, DSP_BITS, strict=True)):
            message = (
                f"a product of {sizes[0]} and {sizes[1]} bits needs more than one DSP (18 x 27 with signs) at {where}"
            )
            return Violation("product", message)
    return None


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
