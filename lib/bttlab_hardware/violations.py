"""Violations: parts of the source that HLS rejects, or does not build with initiation interval 1."""

from dataclasses import dataclass

from bttlab_hardware.graph import DSP_BITS, Graph, Node, callee
from bttlab_hardware.ir import Function, Instruction
from bttlab_hardware.memories import Access, Memories, Port, Unresolved
from bttlab_hardware.places import Places


@dataclass(frozen=True)
class Violation:
    """A violation of a rule of synthesis.

    Its kind is pointer, null, port, call, division, product, operation, loop, recurrence, promise, pragma, block, exit,
    copies or budget.
    """

    kind: str
    message: str


def accesses_of(
    instructions: list[Instruction], memories: Memories, places: Places
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


def of_pointers(function: Function, places: Places) -> list[Violation]:
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


def of_ports(ports: list[Port], accesses: list[tuple[Instruction, Access]], places: Places) -> list[Violation]:
    """Return violations for memories with more than one load or more than one store an iteration."""
    wrong = []
    for port in ports:
        for count, opcode in ((port.loads, "load"), (port.stores, "store")):
            if count > 1 and not port.memory.register:
                lines = sorted(
                    {places.text(i.line) for i, a in accesses if a.memory == port.memory and i.opcode == opcode}
                )
                message = (
                    f"{port.memory.name} has {count} {opcode}s an iteration but one port for them: {', '.join(lines)}"
                )
                wrong.append(Violation("port", message))
    return wrong


def of_operators(graph: Graph, places: Places) -> list[Violation]:
    """Return violations for calls, unknown operations, divisions and wide products in the body."""
    return [v for v in (_operator(node, graph, places) for node in graph.nodes) if v is not None]


def _operator(node: Node, graph: Graph, places: Places) -> Violation | None:
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
