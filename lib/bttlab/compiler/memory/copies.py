"""Copies of what an instruction reads or writes where its port does not reach the bank of the buffer.

No bank is reached by all ports. The bank that leaves the fewest steps without a port is found for each buffer. What the
others read is copied to a buffer of its own before the instruction; what they write is copied from one after it. Two
operands that one instruction reads from one buffer, or has to read from one bank, get a copy, too.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache
from itertools import chain
from typing import NamedTuple

from bttlab.compiler.access import Access, accesses
from bttlab.compiler.buffers import GRADIENT_OF, INNER, LOADS, MEMORIES, STORES, Buffer, buffer_of
from bttlab.compiler.instruction import GRADIENT, Instruction, Level, Memory, Register
from bttlab.compiler.machine import M

# Pairs of memories that have no two banks: the first is copied where both are used.
Apart = Collection[tuple[Memory, Memory]]
OUTSIDE = frozenset(range(M.BANKS, len(MEMORIES)))  # operand buffers and statistics: a unit reaches no other


class Use(NamedTuple):
    """An operand of an instruction in a buffer, and the banks of the buffer in which its port reaches it."""

    instruction: int
    operand: int
    writes: bool
    banks: frozenset[int]


def uses_of(made: Sequence[Buffer], instructions: Sequence[Instruction]) -> dict[int, list[Use]]:
    """Return the uses of each buffer, by its number, in the order of the instructions."""
    uses: dict[int, list[Use]] = defaultdict(list)
    for i, instruction in enumerate(instructions):
        statistics = ((5, True),) if instruction.unit == M.VECTOR and 5 in instruction.operands else ()
        for number, writes in (*instruction.accessed(), *statistics):
            place = instruction.operands[number]
            if (buffer := buffer_of(place, made)) is not None:
                of = (instruction.unit, number, writes, place.memory.kind == GRADIENT)
                uses[buffer.number].append(Use(i, number, writes, _banks(*of) if buffer.is_in_bank else OUTSIDE))
    return uses


@cache
def _banks(unit: int, operand: int, writes: bool, is_gradient: bool) -> frozenset[int]:
    """Return the banks in which an operand's port reaches a buffer, or a buffer's gradient."""
    banks = frozenset(M.reach(unit, operand, writes).banks)
    if is_gradient:
        banks = frozenset(bank for bank, of_gradient in GRADIENT_OF.items() if of_gradient in banks)
    return banks


def with_copies(
    made: list[Buffer], sections: Sequence[list[Instruction]], transferred: Collection[str], apart: Apart = ()
) -> list[list[Instruction]]:
    """Return the sections of a sample with copies, whose buffers are appended to `made`.

    `sections`: the two passes, and what runs once per update: it uses no copy of theirs.
    """
    instructions = [instruction for section in sections for instruction in section]
    in_passes = sum(map(len, sections[:2]))
    before: dict[int, list[Instruction]] = defaultdict(list)
    after: dict[int, list[Instruction]] = defaultdict(list)
    for number, uses in uses_of(made, instructions).items():
        unreached = _unreached(made[number], instructions, uses, transferred)
        for of_passes in (True, False):
            part = [use for use in unreached if (use.instruction < in_passes) == of_passes]
            _add_copies(made, instructions, before, after, uses, part)
    for i, instruction in enumerate(instructions):
        for number, writes in _together(made, instruction, apart):
            _add_copies(made, instructions, before, after, (), [Use(i, number, writes, INNER)])
    result, i = [], 0
    for section in sections:
        numbers = range(i, i := i + len(section))
        result.append(list(chain.from_iterable((*before[n], instructions[n], *after[n]) for n in numbers)))
    return result


def _unreached(
    buffer: Buffer, instructions: Sequence[Instruction], uses: Sequence[Use], transferred: Collection[str]
) -> list[Use]:
    """Return the accesses for which a buffer is copied: those of the fewest steps."""
    allowed = buffer.allowed_banks(transferred)
    if allowed.intersection(*(use.banks for use in uses)):
        return []
    choices = []
    for bank in sorted(allowed):
        unreached = [use for use in uses if bank not in use.banks]
        operands = [instructions[use.instruction].operands[use.operand] for use in unreached]
        pairs = list(zip(unreached, operands, strict=True))
        at = {True: GRADIENT_OF.get(bank), False: bank}  # of a parameter's gradient, and of the buffer
        if all(at[o.memory.kind == GRADIENT] in (LOADS if use.writes else STORES) for use, o in pairs):  # by COPY
            steps = sum(instructions[use.instruction].steps(M.SEQUENCE) for use in unreached)
            in_place = any(operand.token_offset and use.writes for use, operand in pairs)
            choices.append((in_place, steps, bank, unreached))
    return min(choices)[-1]


def _together(made: Sequence[Buffer], instruction: Instruction, apart: Apart) -> Iterator[tuple[int, bool]]:
    """Yield the operands of an instruction that need a copy because another one is in the same bank."""
    for writes, numbers in ((False, instruction.reads()), (True, instruction.writes())):
        used = [(number, instruction.operands[number]) for number in numbers]
        used = [(n, o.memory) for n, o in used if (buffer := buffer_of(o, made)) is not None and buffer.is_in_bank]
        memories = [memory for _, memory in used]
        for n, (number, memory) in enumerate(used):
            if memory in memories[:n] or any((memory, rival) in apart for rival in memories[:n] + memories[n + 1 :]):
                yield number, writes


def _add_copies(
    made: list[Buffer],
    instructions: Sequence[Instruction],
    before: dict[int, list[Instruction]],
    after: dict[int, list[Instruction]],
    uses: Iterable[Use],
    unreached: Iterable[Use],
) -> None:
    """Emit copies of a buffer for some of its uses, before or after the instructions, and let these use them.

    Readers of the same vectors share a copy until the buffer is written again.
    """
    writes, shared = [use.instruction for use in uses if use.writes], {}
    for i, number, is_written, _ in unreached:
        instruction = instructions[i]
        operand = instruction.operands[number]
        access = next(a for a in accesses(instruction) if (a.operand, a.writes) == (number, is_written))
        buffer = made[access.memory.number]
        low, high = access.interval((0,) * M.OFFSET_TABLES)
        nest, strides, first_vector = _nest(instruction, access)
        if access.token_offset:  # any vector may be read
            low, high = 0, buffer.vectors
            nest, strides, first_vector = [Level("w", high)], {"w": 1}, -operand.base
        version = sum(write < i for write in writes)
        key = (version, access.memory, low, high, tuple(nest), tuple(strides.items()))
        if access.writes or key not in shared:
            made.append(Buffer(f"{buffer.name}, copied", high - low, len(made)))
            memory = shared[key] = made[-1].memory
            places = [operand._replace(base=operand.base + first_vector, strides=strides, token_offset=None)]
            places.append(places[0]._replace(memory=memory, base=places[0].base - low))
            source, result = reversed(places) if access.writes else places
            label = (*instruction.label[:2], f"copy of {buffer.name}")
            flags = instruction.flags & M.CHECK if access.writes else 0
            operands = {0: source, 3: result}
            copy = Instruction(M.VECTOR, M.COPY, tuple(nest), operands, label, flags=flags, node=instruction.node)
            (after if access.writes else before)[i].append(copy)
        instruction.operands[number] = operand._replace(memory=shared[key], base=operand.base - low)


def _nest(instruction: Instruction, access: Access) -> tuple[list[Level], dict[str, int], int]:
    """Return the loops and strides that make an access once to each vector, and the first vector from the operand's."""
    nest, strides, first_vector = [], {}, 0
    for loop, (first, end, _), stride in zip(instruction.loops, access.steps, access.strides, strict=True):
        if stride and end != 1:
            nest.append(Level(loop.name, end - first))
            strides[loop.name] = stride
            first_vector += first * stride
        elif isinstance(end, Register) and not end.low:  # without such tokens there is nothing to copy
            nest.append(Level(loop.name, end.clipped(0, 1)))
    return nest or [Level("one", 1)], strides, first_vector
