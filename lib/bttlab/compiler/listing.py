"""Instructions as text, and the layers that they belong to."""

import re

from bttlab.compiler.instruction import UNIT_NAMES, At, Bound, Instruction, Level, Register
from bttlab.compiler.machine import M

SECTION_NAMES = ("forward", "backward", "flush", "load", "store", "clear")
_OPERATIONS = {
    **{(unit, getattr(M, name)): name for unit in (M.ENGINE_0, M.ENGINE_1) for name in M.enums["EngineOperation"]},
    **{(M.VECTOR, getattr(M, name)): name for name in M.enums["VectorOperation"]},
    **{(M.DRAIN_0, 0): "MOVE", (M.DRAIN_1, 0): "MOVE", (M.SHUFFLE, 0): "SHUFFLE", (M.UPDATE, 0): "UPDATE"},
}
_OPERANDS = {  # names of each unit's operands
    M.ENGINE_0: ("buffer", "stream", "scalars", "addend", "result", "buffered result"),
    M.DRAIN_0: ("accumulators", "", "", "", "result", ""),
    M.VECTOR: ("a", "b", "c", "r0", "r1", "rows"),
    M.SHUFFLE: ("entries in", "source", "entries out", "", "result", "buffered result"),
    M.UPDATE: ("p", "g", "m", "v", "", ""),
}
_OPERANDS[M.ENGINE_1], _OPERANDS[M.DRAIN_1] = _OPERANDS[M.ENGINE_0], _OPERANDS[M.DRAIN_0]


def instruction_line(number: int, instruction: Instruction) -> str:
    """Return an instruction as a line: number, unit, operation, label, loops, operands, waits.

    Notes
    -----
    `t<T` is a loop over the sample's tokens, `w<8/3` one of eight steps of which three are active. `bank 4[100 + 3t]`
    is a vector; `slice2[t]` in it is the offset of token t in table 2. `after vector 3` waits for the end of the unit's
    third instruction, `vector 3 drained` for its results, `vector 3 begun` is chained to it.
    """
    stage, layer, what = instruction.label
    names, operation = _OPERANDS[instruction.unit], _OPERATIONS[instruction.unit, instruction.operation]
    operands = {n: _place(operand) for n, operand in sorted(instruction.operands.items())}
    if instruction.unit == M.VECTOR and 5 in operands:  # rows of all statistics
        function = f" F{instruction.function}" if instruction.function else ""
        operands[5] = f"{instruction.operands[5].base}{function}"
    flags = [name for name in M.enums["Flag"] if instruction.flags & getattr(M, name)]
    parts = [
        f"{number:4} {UNIT_NAMES[instruction.unit]:8} {operation:14} {stage} {layer}: {what}",
        " ".join(_loop(loop) for loop in instruction.loops),
        " ".join(f"{names[n]}={place}" for n, place in operands.items()),
    ]
    if instruction.count:
        parts.append(f"count {_bound(instruction.count)}")
    if instruction.depth:
        parts.append(f"sums over {', '.join(instruction.depth)}")
    if instruction.row:
        parts.append(f"row {instruction.row[1]} + {instruction.row[0]}")
    if flags:
        parts.append(" ".join(flags))
    waits = _waits(instruction)
    if waits:
        parts.append(f"after {', '.join(waits)}")
    return " | ".join(parts)


def _waits(instruction: Instruction) -> list[str]:
    waits = []
    for unit, name in enumerate(UNIT_NAMES):
        drained, begun = instruction.after_drain[unit], instruction.after_begin[unit]
        if instruction.after_end[unit]:
            waits.append(f"{name} {instruction.after_end[unit]}")
        if max(drained, begun):
            waits.append(f"{name} {begun} begun" if begun > drained else f"{name} {drained} drained")
    return waits


def _loop(loop: Level) -> str:
    bound, active = _bound(loop.bound), _bound(loop.active_bound)
    return f"{loop.name}<{bound}" if active == bound else f"{loop.name}<{bound}/{active}"


def _bound(bound: Bound) -> str:
    if not isinstance(bound, Register):
        return str(bound)
    text = f"T{bound.offset:+}" if bound.offset else "T"
    if bound.shift:
        text = f"({text})>>{bound.shift}"
    return f"{text}[{bound.low}..{bound.high}]"


def _place(operand: At) -> str:
    terms = [str(operand.base), *(f"{'' if s == 1 else s}{name}" for name, s in operand.strides.items() if s)]
    if operand.token_offset is not None:
        group = f"{8 * operand.token_offset.group}+" if operand.token_offset.group else ""
        terms.append(f"slice{operand.token_offset.table}[{group}{operand.token_offset.level}]")
    return f"{operand.memory or ''}[{' + '.join(terms)}]"


def layer_of(instruction: Instruction) -> str:
    """Return the layer that an instruction belongs to; for an update, the layer of the parameter."""
    return re.sub(r"(\.cores\.\d+|\.weight|\.bias)$", "", instruction.label[1])


def part_of(instruction: Instruction) -> str:
    """Return the part of the model: "embedding", "encoder 0", ..., "heads"."""
    names = layer_of(instruction).split(".")
    if names[0] == "encoders":
        return f"encoder {names[1]}"
    return names[0] if names[0] == "embedding" else "heads"
