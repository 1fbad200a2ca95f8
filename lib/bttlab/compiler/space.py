"""What of a model fits, if its parameters or instructions are too many: the largest rank, how many layers or rows."""

import math
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
from bttlab.compiler.ops.elementwise import TokenRowsOperand
from bttlab.compiler.ops.embedding import DenseEmbedding, Embedding
from bttlab.compiler.ops.norm import Norm
from bttlab.compiler.ops.tt_linear import TTLinear
from bttlab.tensor.shapes import choose_modes

# Families in the order in which they place parameters and allocate; others follow. It decides ties of the bank search.
FAMILIES = (Embedding, TokenRowsOperand, TTLinear, Dense, Norm, Attention)
ENDS, MOST_RANK = 3, 64  # modes at each end of a compressed layer, and the largest rank of the card
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
        if type(op) is DenseEmbedding and not op.in_records:
            rows = graph.shapes[f"{op.name}.weight"][0]
            each = max(size[f"{op.name}.weight"] // rows, 1)
            left = min((limit - total) // each + rows, LARGEST_BANK // each)  # a table is in one bank
            parts.append(f"{left:,} of {rows:,} rows of {op.name} (cut_vocabulary)" if 0 < left < rows else "")
            parts.append(_frozen_rows(graph, op, limit - total + size[f"{op.name}.weight"]))
    return " or ".join(filter(None, parts)) or (_together(graph, flow, sums, limit) if total > limit else "")


def _frozen_rows(graph: Any, table: DenseEmbedding, left: int) -> str:
    """Return the tokens of a sample whose rows fit a record, if the table is trained and all else has space."""
    name = f"{table.name}.weight"
    is_alone = _users(graph, name) == [table]
    tokens = M.banks[M.IN_BANK].depth // vectors_for(table.output.features)
    if name in graph.frozen or not is_alone or left < 0 or tokens < 2:
        return ""
    most = min(tokens, M.SEQUENCE)
    return f"{table.name} frozen, with up to {most} tokens (requires_grad_(False))"


def largest_list(size: Mapping[str, float]) -> tuple[str, Counter[int]]:
    """Return the name of the numbered list of layers that needs the most, and what each of its layers needs."""
    lists: dict[str, Counter[int]] = defaultdict(Counter)
    for name, count in size.items():
        if found := NUMBERED.match(name):
            lists[found[1]][int(found[2])] += count
    lists = {name: each for name, each in lists.items() if not name.endswith(".cores") and len(each) > 1}
    return max(lists.items(), key=lambda item: item[1].total(), default=("", Counter()))


def layer_number(name: str, of_list: str) -> int | None:
    """Return the number of the layer of a list to which an operation or parameter belongs; None if to none."""
    found = NUMBERED.match(name)
    return int(found[2]) if found and found[1] == of_list else None


def layers_that_fit(size: Mapping[str, float], limit: int, unit: str) -> str:
    """Return how many layers of the largest numbered list fit; "" if none does, or there is no such list.

    `size`: what an operation or parameter, such as "encoders.3.query", needs of the limit, by its name.
    """
    name, each = largest_list(size)
    if not each:
        return ""
    left, fits = limit - sum(size.values()) + each.total(), 0
    for number in sorted(each):
        left -= each[number]
        fits += left >= 0
    typical = sorted(each.values())[len(each) // 2]
    return f"{fits} of {len(each)} layers of {name} ({typical:,.0f} {unit} each)" if 0 < fits < len(each) else ""


def _together(graph: Any, flow: Any, sums: bool, limit: int) -> str:
    """Return a frozen table and the rank of compressed linear layers with which the parameters have space, or "".

    For a model that no change alone makes small enough.
    """
    table = next((op for op in graph.operations if type(op) is DenseEmbedding), None)
    tokens = 0 if table is None else M.banks[M.IN_BANK].depth // vectors_for(table.output.features)
    is_alone = table is not None and _users(graph, f"{table.name}.weight") == [table]

    def fits(rank: int) -> bool:
        context = Context(_compressed(graph, rank), flow, sums)
        try:
            prepare(context)
        except ProgramError:
            return False
        of_table = f"{table.name}.weight" if table is not None and is_alone else ""
        blocks = (block for block in context.layout.blocks if block.buffer.is_parameter and block.name != of_table)
        return sum(block.vectors for block in blocks) <= limit

    rank = _last(fits, MOST_RANK + 1)
    if not rank or tokens < 2:
        return ""
    rows = f"{table.name} frozen, with up to {min(tokens, M.SEQUENCE)} tokens, and " if is_alone else ""
    return f"{rows}ranks up to {rank} (compress(model, rank={rank}, embeddings=False))"


def _users(graph: Any, name: str) -> list[Operation]:
    return [op for op in graph.operations if name in op.parameters(graph.shapes)]


def _compressed(graph: Any, rank: int) -> Any:
    """Return the graph with tensor-train layers of a rank in place of its dense ones, but for those of the outputs."""
    changed = copy(graph)
    changed.shapes, changed.operations = dict(graph.shapes), list(graph.operations)
    for place, op in enumerate(graph.operations):
        weight = f"{op.name}.weight"
        if type(op) is not Dense or op.weight != weight or op.transposed or _users(graph, weight) != [op]:
            continue
        modes = [choose_modes(graph.shapes[weight][0], ENDS), choose_modes(graph.shapes[weight][1], ENDS)[::-1]]
        if min(map(len, modes)) < ENDS or op.output.features != graph.shapes[weight][0]:
            continue
        modes = [*modes[0], *modes[1]]
        bonds = [min(rank, math.prod(modes[:k]), math.prod(modes[k:])) for k in range(len(modes) + 1)]
        del changed.shapes[weight]
        for k, mode in enumerate(modes):
            changed.shapes[f"{op.name}.cores.{k}"] = (bonds[k], mode, bonds[k + 1])
        changed.operations[place] = TTLinear(op.name, op.inputs, op.output)
    return changed


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
    return f"ranks up to {largest} (the largest is {max(ranks)})" if largest else ""


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
