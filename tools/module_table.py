"""Print the table of docs/tensor.md: which functions of PyTorch the card trains. From the tracer's rules alone."""

import re
from pathlib import Path

from bttlab.compiler import trace_rules
from bttlab.compiler.operation import Operation
from bttlab.compiler.trace_record import COPIES, IN_TORCH, MOVES, RULES

PAGE = Path(__file__).parent.parent / "docs" / "tensor.md"
MARKS = "<!-- functions -->\n", "<!-- end -->\n"


def table() -> str:
    """Return the table's lines."""
    steps = set(trace_rules.ELEMENTWISE.split()) - set(IN_TORCH)
    rules = set(RULES) - set(trace_rules.ELEMENTWISE.split())
    rows = [
        ("recorded, with the conditions that a refusal names", rules | set(Operation.of_function)),
        ("activations, also written out", set(IN_TORCH)),
        ("steps of an activation that is written out, or of a difference", steps),
        ("moves of elements: rows, columns of whole vectors, heads", MOVES - COPIES),
        ("no operation", COPIES),
    ]
    lines = ["| on the card | functions of torch and of its layers |", "|---|---|"]
    return "".join(f"{line}\n" for line in [*lines, *(f"| {kind} | {_listed(names)} |" for kind, names in rows)])


def _listed(names: set[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names, key=lambda name: (name.lower(), name)))


def page(text: str) -> str:
    """Return the page with the present table."""
    begin, end = map(re.escape, MARKS)
    return re.sub(f"{begin}.*?{end}", lambda _: f"{MARKS[0]}{table()}{MARKS[1]}", text, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
