"""Waits of instructions for each other, from the vectors that they access and the ports that they use.

An instruction that reads vectors that another writes waits until that one has *drained*: its results are in the banks.
An instruction that writes vectors that another accesses, or uses the same ports, waits until that one has *ended*: it
makes no more requests. If one instruction reads vectors at least as slowly, and in the same order, as another writes
them, it is *chained* to it: it waits until LATENCY cycles after the other's begin.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from bttlab.compiler.access import Access, accesses_of_vectors, drains_of, uses_sums
from bttlab.compiler.instruction import OPERANDS, At, Bound, Instruction, Memory, Register, max_of
from bttlab.compiler.machine import M

END, CHAIN, DRAIN = 1, 2, 4  # kinds of wait, combined by bitwise or
Waits = list[dict[int, int]]  # for each instruction: the kinds of wait, by the number of the instruction waited for
Ports = tuple[int, ...]  # the numbers of the ports that an instruction uses
PART = 9  # accesses are listed by parts of 2^PART vectors of a memory: few are in the same part


class _Shape(NamedTuple):
    """What accesses by the same loops and strides have in common, wherever they are.

    `low`, `high`: lowest vector, and one more than the highest, from the operand's base.
    `written`, `read`: its loops if instructions can be chained to it, or it to another; else None.
    """

    operand: int | None
    memory: Memory | None  # None for that of the operand
    writes: bool
    low: int
    high: int
    written: tuple | None = None
    read: tuple | None = None


Located = tuple[Memory, bool, int, int, int, _Shape]  # memory, whether it writes, interval, base, shape


def ports_of(instructions: Iterable[Instruction]) -> list[Ports]:
    """Return the shared ports that each instruction uses: a memory's load port, and its store port.

    They have numbers in the order of their first use: the scheduler looks them up often.
    """
    numbers: dict[tuple[Memory, bool], int] = {}
    return [
        tuple({numbers.setdefault((of.operands[n].memory, writes), len(numbers)) for n, writes in of.accessed()})
        for of in instructions
    ]


def data_waits(instructions: Sequence[Instruction], offset_span: tuple[int, ...]) -> Waits:
    """Return the waits that data dependences cause: through vectors, and from an accumulation to its drains.

    They hold in every order that preserves the dependences. `offset_span`: largest token offset of each table.
    Waits for a free ping-pong buffer of sums are not included: the scheduler still chooses the buffer.
    """
    waits: Waits = [{} for _ in instructions]
    add_conflicts(waits, (located(instruction, offset_span) for instruction in instructions))
    for accumulation, drains in drains_of(instructions).items():
        for drain in drains:
            waits[drain][accumulation] = DRAIN
    return waits


def located(instruction: Instruction, offset_span: tuple[int, ...]) -> list[Located]:
    """Return an instruction's accesses to vectors, each with the interval of its addresses."""
    operands, result = instruction.operands, []
    strides = tuple([(n, tuple(o.strides.items()), o.token_offset) for n, o in operands.items()])
    of = instruction.loops, instruction.depth, instruction.count, instruction.accumulator_loop, instruction.flags
    for shape in _shapes(instruction.unit, instruction.operation, *of, strides, offset_span):
        if shape.operand is None:
            memory, base = shape.memory, operands[5].base if 5 in operands else 0
        else:
            memory, base = operands[shape.operand].memory, operands[shape.operand].base
        result.append((memory, shape.writes, base + shape.low, base + shape.high, base, shape))
    return result


@lru_cache(1 << 12)
def _shapes(unit: int, operation: int, loops, depth, count, accumulator_loop, flags, strides, offset_span):
    """Return the shapes of the accesses of instructions that differ in the places of their operands alone."""
    operands = {number: At(None, 0, dict(of), token_offset) for number, of, token_offset in strides}
    of = {"count": count, "depth": depth, "accumulator_loop": accumulator_loop, "flags": flags}
    instruction, shapes = Instruction(unit, operation, loops, operands, **of), []
    for access in accesses_of_vectors(instruction):
        loops_of_it = [
            tuple(_loops(access, is_reader)) if can_chain(instruction, access) else None
            for is_reader, can_chain in ((False, _is_followed), (True, _can_follow))
        ]
        interval = access.interval(offset_span)
        shapes.append(_Shape(access.operand, access.memory, access.writes, *interval, *loops_of_it))
    return shapes


def add_conflicts(waits: Waits, accesses: Iterable[list[Located]]) -> None:
    """Add the waits that conflicting accesses cause; `accesses` has those of each instruction, in their order."""
    # Accesses so far, those that read and those that write, by memory and part of it: instruction, interval, base,
    # shape. One is in the list of each of its parts.
    past: dict[Memory, tuple[dict[int, list], dict[int, list]]] = {}
    for i, new in enumerate(accesses):
        kinds, met_by_writes, entries_of = waits[i], [], []
        for memory, writes, low, high, base, shape in new:
            if memory not in past:
                past[memory] = {}, {}
            parts = range(low >> PART, (high - 1 >> PART) + 1)
            for earlier_writes in (False, True) if writes else (True,):
                lists = past[memory][earlier_writes]
                later = DRAIN if earlier_writes and not writes else END
                for part in parts:
                    is_met = False
                    for j, its_low, its_high, its_base, earlier in lists.get(part, ()):
                        if low < its_high and its_low < high:
                            is_met = True
                            kind = later
                            if its_base == base and memory.kind != OPERANDS and _is_chained(earlier, shape):
                                kind = CHAIN
                            kinds[j] = kinds.get(j, 0) | kind
                    if writes and is_met:
                        met_by_writes.append((lists[part], low, high))
            entries_of.append((past[memory][writes], parts, (i, low, high, base, shape)))
        for entries, low, high in met_by_writes:  # later instructions need not wait for accesses wholly within a write
            entries[:] = [entry for entry in entries if entry[1] < low or high < entry[2]]
        for lists, parts, entry in entries_of:
            for part in parts:
                if part in lists:
                    lists[part].append(entry)
                else:
                    lists[part] = [entry]


def _loops(access: Access, is_reader: bool) -> list[tuple[Bound, Bound, int]]:
    """Return the loops of an access, outermost first, with loops over adjacent vectors merged.

    Each has the end of the acting indices, the bound, and the stride in vectors.
    `is_reader`: whether the access is the later one of a pair: then loops without a stride are left out, since a
    repeated access comes later than the first.
    """
    merged: list[tuple[Bound, Bound, int]] = []
    for (_, end, bound), stride in zip(access.steps, access.strides, strict=True):
        if max_of(bound) <= 1 or (is_reader and not stride):
            continue
        outer_end, outer_bound, outer_stride = merged[-1] if merged else (0, 0, None)
        is_fixed = not any(isinstance(b, Register) for b in (outer_end, outer_bound, end, bound))
        if is_fixed and outer_stride == end * stride and (is_reader or end == bound):
            merged[-1] = outer_end * end, outer_bound * bound, stride
        else:
            merged.append((end, bound, stride))
    return merged


def _at_least(bound: Bound, least: Bound) -> bool:
    """Return True if a bound is at least as large as another for every length of the sample."""
    if isinstance(bound, Register) and isinstance(least, Register):
        return bound[:2] == least[:2] and bound.low >= least.low and bound.high >= least.high
    return bound == least or (not isinstance(bound, Register) and bound >= max_of(least))


def _is_followed(writer: Instruction, written: Access) -> bool:
    """Return True if instructions can be chained to one by an access of its own."""
    if written.operand is None or written.token_offset:
        return False
    if writer.unit == M.VECTOR:
        return writer.operation != M.COLUMNS
    return writer.unit <= M.ENGINE_1 and writer.operation == M.EXPAND


def _can_follow(reader: Instruction, read: Access) -> bool:
    """Return True if an instruction can be chained to another one by an access of its own."""
    if read.operand is None or read.token_offset:
        return False
    return reader.unit in (0, M.ENGINE_1, M.VECTOR) or (reader.unit == M.SHUFFLE and not read.writes)


def _is_chained(writer: _Shape, reader: _Shape) -> bool:
    """Return True if the reader, begun LATENCY cycles after the writer, reads no vector before it is written.

    Both begin at the same vector. The same holds for two accesses of other kinds: the second instruction makes no
    access at an earlier step.
    """
    loops, others = writer.written, reader.read
    if loops is None or others is None or len(loops) != len(others):
        return False
    for n, ((end, least, stride), (other_end, bound, other_stride)) in enumerate(zip(loops, others, strict=True)):
        if end != other_end or stride != other_stride:
            return False
        # An iteration of an outer loop takes as many steps as its inner loops have.
        if n and not _at_least(bound, least):
            return False
    return True


def set_waits(
    instructions: Sequence[Instruction],
    known: Waits,
    order: Sequence[int] | None = None,
    ports: Sequence[Ports] | None = None,
) -> None:
    """Set every instruction's `after` counts.

    `known`: waits that are the same in every order (`data_waits`).
    `order`: order in which the instructions are sent; by default that of the list.
    `ports`: of each instruction (`ports_of`), if they are known.
    """
    order = range(len(instructions)) if order is None else order
    ports = ports_of(instructions) if ports is None else ports
    waits = _with_sums(instructions, known, order)
    place = [0] * len(instructions)  # position of each in its unit's sequence, from 1
    counts = [0] * M.UNITS
    users: dict[int, dict[int, int]] = defaultdict(dict)  # of each port, by unit: the last instruction's place
    for i in order:
        instruction = instructions[i]
        unit = instruction.unit
        counts[unit] += 1
        place[i] = counts[unit]
        end, begin, drain = [0] * M.UNITS, [0] * M.UNITS, [0] * M.UNITS
        for j, until in waits[i].items():
            awaited = instructions[j].unit
            last = place[j]
            if until & DRAIN:
                if last > drain[awaited]:
                    drain[awaited] = last
                continue
            if until & CHAIN and last > begin[awaited]:
                begin[awaited] = last
            if until & END and last > end[awaited]:
                end[awaited] = last
        for port in ports[i]:
            of_port = users[port]
            for awaited, last in of_port.items():
                if last > end[awaited]:
                    end[awaited] = last
            of_port[unit] = place[i]
        end[unit] = 0  # a unit takes its instructions in order
        instruction.after_end, instruction.after_begin, instruction.after_drain = end, begin, drain


def _with_sums(instructions: Sequence[Instruction], known: Waits, order: Iterable[int]) -> Waits:
    """Return the waits with those for the ping-pong buffers of sums, for instructions in an order.

    An instruction that adds to a buffer waits for the end of those that use it since another one added to it, and of
    that one; a drain waits for what the last one added.
    """
    waits, users = list(known), {}  # of each buffer: the last instruction that adds to it, and its drains
    for i in order:
        instruction = instructions[i]
        if not uses_sums(instruction):
            continue
        of = 2 * instruction.engine + bool(instruction.flags & M.PONG)
        adding, drains = users.get(of, (None, []))
        kind = DRAIN if instruction.is_drain else END
        waits[i] = mine = dict(known[i])
        for j in (adding,) if instruction.is_drain else (adding, *drains):
            if j is not None:
                mine[j] = mine.get(j, 0) | kind
        if instruction.is_drain:
            drains.append(i)
        else:
            users[of] = i, []
    return waits
