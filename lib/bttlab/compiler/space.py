"""What of a model fits, if its parameters or instructions are too many: the largest rank, how many layers or rows."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any

from bttlab.compiler.buffers import GRADIENT_OF
from bttlab.compiler.builder import vectors_for
from bttlab.compiler.errors import ProgramError
from bttlab.compiler.machine import M
from bttlab.compiler.operation import Context, Operation, core_names
from bttlab.compiler.ops.attention import Attention
from bttlab.compiler.ops.dense import Dense
from bttlab.compiler.ops.elementwise import Rows
from bttlab.compiler.ops.embedding import Embedding, Table
from bttlab.compiler.ops.norm import Norm
from bttlab.compiler.ops.tt_linear import Linear

# Families in the order in which they place parameters and allocate; others follow. It decides ties of the bank search.
FAMILIES = (Embedding, Rows, Linear, Dense, Norm, Attention)
LARGEST_BANK = max(M.banks[bank].depth for bank in GRADIENT_OF)
NUMBERED = re.compile(r"(.*?)\.(\d+)(?=\.|$)")  # a layer's name: that of its list, and its number there


def prepare(context: Context) -> None:
    """Place the parameters of a model, and allocate what its operations need for both passes."""
    families: dict[type, list[Operation]] = {}
    for op in context.operations:
        families.setdefault(op.family, []).append(op)
    for family in dict.fromkeys([*FAMILIES, *families]):
        if family in families:
            type(families[family][0]).prepare(families[family], context)


def parameter_vectors(context: Context) -> int:
    return sum(block.vectors for block in context.layout.blocks if block.buffer.is_parameter)


def what_fits(graph: Any, flow: Any, sums: bool, limit: int) -> str:
    """Return what has space in `limit` vectors of parameters: ranks, layers and rows of a table; "" if nothing has.

    Each is what can be changed alone. A model that has space for its parameters may still not fit by its activations.
    """
    context = Context(graph, flow, sums)
    prepare(context)
    size = Counter[str]()
    for block in context.layout.blocks:
        if block.buffer.is_parameter:
            size[block.name] += block.vectors
    total = size.total()
    parts = [_ranks(graph, flow, sums, limit), layers_that_fit(size, limit, "vectors")] if total > limit else []
    for op in graph.operations:
        if type(op) is Table and not op.in_records:
            rows = graph.shapes[f"{op.name}.weight"][0]
            each = max(size[f"{op.name}.weight"] // rows, 1)
            left = min((limit - total) // each + rows, LARGEST_BANK // each)  # a table is in one bank
            parts.append(f"{left:,} of {rows:,} rows of {op.name} (cut_vocabulary)" if 0 < left < rows else "")
            parts.append(_frozen_rows(graph, op, limit - total + size[f"{op.name}.weight"]))
    return " or ".join(filter(None, parts))


def _frozen_rows(graph: Any, table: Table, left: int) -> str:
    """Return the tokens of a sample whose rows fit a record, if the table is trained and all else has space."""
    name = f"{table.name}.weight"
    is_alone = [op for op in graph.operations if name in op.parameters(graph.shapes)] == [table]
    tokens = M.banks[M.IN_BANK].depth // vectors_for(table.output.features)
    if name in graph.frozen or not is_alone or left < 0 or tokens < 2:
        return ""
    most = min(tokens, M.SEQUENCE)
    return f"{table.name} frozen, with up to {most} tokens (requires_grad_(False))"


def layers_that_fit(size: Mapping[str, float], limit: int, unit: str) -> str:
    """Return how many layers of the largest numbered list fit; "" if none does, or there is no such list.

    `size`: what an operation or parameter, such as "encoders.3.query", needs of the limit, by its name.
    """
    lists: dict[str, Counter[int]] = defaultdict(Counter)
    for name, count in size.items():
        if found := NUMBERED.match(name):
            lists[found[1]][int(found[2])] += count
    lists = {name: each for name, each in lists.items() if not name.endswith(".cores") and len(each) > 1}
    if not lists:
        return ""
    name, each = max(lists.items(), key=lambda item: item[1].total())
    left, fits = limit - sum(size.values()) + each.total(), 0
    for number in sorted(each):
        left -= each[number]
        fits += left >= 0
    typical = sorted(each.values())[len(each) // 2]
    return f"{fits} of {len(each)} layers of {name} ({typical:,.0f} {unit} each)" if 0 < fits < len(each) else ""


def _ranks(graph: Any, flow: Any, sums: bool, limit: int) -> str:
    """Return the largest rank, of all tensor-train layers, with which the parameters have space."""
    layers = {op.name: names for op in graph.operations if (names := core_names(graph.shapes, op.name))}
    ranks = [graph.shapes[name][-1] for names in layers.values() for name in names]

    def fits(rank: int) -> bool:
        changed = copy(graph)
        changed.shapes = {name: shape for name, shape in graph.shapes.items()}
        for names in layers.values():
            changed.shapes |= {name: _limited(graph.shapes[name], rank) for name in names}
        context = Context(changed, flow, sums)
        try:
            prepare(context)
        except ProgramError:
            return False
        return parameter_vectors(context) <= limit

    largest = _last(fits, max(ranks, default=1))
    return f"ranks up to {largest}" if largest else ""


def _limited(shape: Sequence[int], rank: int) -> tuple[int, ...]:
    first, *modes, last = shape
    return (min(first, rank), *modes, min(last, rank))


def _last(fits: Callable[[int], bool], stop: int) -> int:
    """Return the largest number below `stop` that fits, where all smaller ones do, too; 0 if none does."""
    low, high = 0, stop
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
