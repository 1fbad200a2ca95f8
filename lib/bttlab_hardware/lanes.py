"""Find the lanes of vectors that are read, and vectors whose lanes are equal: HLS builds operators for these only."""

import re

from bttlab_hardware.ir import Instruction
from bttlab_hardware.types import lanes_of
from bttlab_hardware.widths import constant_number

_MASK = re.compile(r"<(\d+) x i32> (<[^>]*>|splat \(i32 \d+\)|\w+)\s*(?:, !.*)?$")
# Operations in which each lane of the result depends on the same lane of the operands only.
_LANEWISE = frozenset(
    "fadd fsub fmul fdiv fneg fcmp icmp add sub mul and or xor shl lshr ashr select phi zext sext trunc fptosi fptoui "
    "sitofp uitofp freeze delay call".split()
)


def shuffle_mask(text: str) -> list[int | None]:
    """Return the source lane of each lane of a shufflevector, counted over both operands; None if undefined."""
    match = _MASK.search(text)
    count, body = int(match[1]), match[2]
    if body.startswith("splat"):
        return [int(re.search(r"\d+(?=\))", body)[0])] * count
    if body[0] != "<":
        return [0 if body == "zeroinitializer" else None] * count
    return [
        None if "i32" not in part or not part.split()[-1].isdigit() else int(part.split()[-1])
        for part in body[1:-1].split(",")
    ]


def used_lanes(order: list[Instruction]) -> tuple[dict[Instruction, int], set[Instruction]]:
    """Return a bit mask of the lanes of each vector that are read, and the set of vectors whose lanes are all equal.

    `order` is a loop's body in topological order, loop-carried values excepted.
    """
    masks: dict[Instruction, int] = {}
    changed = True
    while changed:
        changed = False
        for instruction in reversed(order):
            own = masks.get(instruction, 0)
            for operand, mask in _demands(instruction, own):
                if operand.kind == "instruction" and mask & ~masks.get(operand, 0):
                    masks[operand] = masks.get(operand, 0) | mask
                    changed = True
    return {i: masks.get(i, 0) for i in order if lanes_of(i.type)[0] > 1}, _uniform(order)


def _demands(instruction: Instruction, own: int):
    operands = instruction.operands
    everything = [(o, (1 << lanes_of(o.type)[0]) - 1) for o in operands]
    lanes = lanes_of(instruction.type)[0]
    match instruction.opcode:
        case "extractelement" if operands[1].kind == "constant":
            return [(operands[0], 1 << constant_number(operands[1].text))]
        case "insertelement" if operands[2].kind == "constant":
            place = 1 << constant_number(operands[2].text)
            return [(operands[0], own & ~place), (operands[1], 1)]
        case "insertelement":
            return [(operands[0], own), *everything[1:]]
        case "shufflevector":
            width = lanes_of(operands[0].type)[0]
            demanded = [0, 0]
            for lane, source in enumerate(shuffle_mask(instruction.text)):
                if source is not None and own >> lane & 1:
                    demanded[source >= width] |= 1 << source % width
            return list(zip(operands, demanded, strict=False))
        case opcode if opcode in _LANEWISE and lanes > 1:
            return [(o, own if lanes_of(o.type)[0] == lanes else 1) for o in operands]
        case "bitcast" if lanes > 1 and lanes == lanes_of(operands[0].type)[0]:
            return [(operands[0], own)]
    return everything


def _uniform(order: list[Instruction]) -> set[Instruction]:
    alike: set[Instruction] = set()
    for instruction in order:
        lanes = lanes_of(instruction.type)[0]
        if lanes == 1:
            continue
        if instruction.opcode == "shufflevector":
            if len(set(shuffle_mask(instruction.text)) - {None}) == 1:
                alike.add(instruction)
        elif instruction.opcode in _LANEWISE and all(
            o in alike or lanes_of(o.type)[0] == 1 or (o.kind == "constant" and o.text[0] != "<")
            for o in instruction.operands
        ):
            alike.add(instruction)
    return alike
