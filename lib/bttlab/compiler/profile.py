"""Layers of instructions, busy units, and the intervals of a run in which the same instructions work."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence

from bttlab.compiler.instruction import Instruction
from bttlab.compiler.machine import M
from bttlab.compiler.timing import Timing


def layer_of(instruction: Instruction) -> str:
    """Return the layer that an instruction belongs to; for an update, the layer of the parameter."""
    return re.sub(r"(\.cores\.\d+|\.weight|\.bias)$", "", instruction.label[1])


def part_of(instruction: Instruction) -> str:
    """Return the part of the model: "embedding", "encoder 0", ..., "heads"."""
    names = layer_of(instruction).split(".")
    if names[0] == "encoders":
        return f"encoder {names[1]}"
    return names[0] if names[0] == "embedding" else "heads"


def busy_shares(instructions: Sequence[Instruction], timing: Timing) -> list[float]:
    """Return, for each unit, the fraction of all cycles in which it does steps."""
    steps = [0] * M.UNITS
    for instruction, begin, end in zip(instructions, timing.begin, timing.end, strict=True):
        steps[instruction.unit] += end - begin
    return [count / timing.cycles for count in steps]


def intervals_of(
    instructions: Sequence[Instruction], timing: Timing, label_of: Callable[[Instruction], Hashable]
) -> Iterator[tuple[int, Counter]]:
    """Divide a run into intervals in which the same instructions do steps.

    Yield the cycles of each interval, and the number of instructions of each label that do steps in it.
    """
    edges: dict[int, list[tuple[int, Hashable]]] = defaultdict(list)
    for instruction, begin, end in zip(instructions, timing.begin, timing.end, strict=True):
        if end > begin:
            edges[begin].append((1, label_of(instruction)))
            edges[end].append((-1, label_of(instruction)))
    working: Counter = Counter()
    before = 0
    for cycle in sorted({*edges, timing.cycles}):
        yield cycle - before, working
        for change, label in edges[cycle]:
            working[label] += change
        before = cycle
