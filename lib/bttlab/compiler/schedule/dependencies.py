"""Waits of instructions for each other, from the vectors that they access and the ports that they use.

An instruction that reads vectors that another writes waits until that one has *drained*: its results are in the banks.
An instruction that writes vectors that another accesses, or uses the same ports, waits until that one has *ended*: it
makes no more requests. If one instruction reads vectors at least as slowly, and in the same order, as another writes
them, it is *chained* to it: it waits until LATENCY cycles after the other's begin.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from bttlab.compiler.access import Access, accesses_of_sums, accesses_of_vectors, drains_of, uses_sums
from bttlab.compiler.instruction import OPERANDS, Bound, Instruction, Memory, Register, max_of
from bttlab.compiler.machine import M

END, CHAIN, DRAIN = 1, 2, 4  # kinds of wait, combined by bitwise or
Waits = list[dict[int, int]]  # for each instruction: the kinds of wait, by the number of the instruction waited for


def ports_of(instruction: Instruction) -> set[tuple[Memory, bool]]:
    """Return the shared ports that an instruction uses, as (memory, whether it is the store port)."""
    return {(instruction.operands[number].memory, writes) for number, writes in instruction.accessed()}


def data_waits(instructions: Sequence[Instruction], offset_span: tuple[int, ...]) -> Waits:
    """Return the waits that data dependences cause: through vectors, and from an accumulation to its drains.

    They hold in every order that preserves the dependences. `offset_span`: largest token offset of each table.
    Waits for a free ping-pong buffer of sums are not included: the scheduler still chooses the buffer.
    """
    waits: Waits = [{} for _ in instructions]
    _add_conflicts(waits, instructions, range(len(instructions)), accesses_of_vectors, offset_span)
    for accumulation, drains in drains_of(instructions).items():
        for drain in drains:
            waits[drain][accumulation] = DRAIN
    return waits


def _add_conflicts(
    waits: Waits,
    instructions: Sequence[Instruction],
    order: Iterable[int],
    accesses_of: Callable[[Instruction], Iterable[Access]],
    offset_span: tuple[int, ...],
) -> None:
    """Add the waits that conflicting accesses cause for instructions in an order."""
    # Accesses so far, by memory and whether they write: instruction, interval of addresses, access.
    past: dict[tuple[Memory, bool], list[tuple[int, int, int, Access]]] = defaultdict(list)
    for i in order:
        new = [(i, *access.interval(offset_span), access) for access in accesses_of(instructions[i])]
        kinds, met_by_writes = waits[i], []
        for _, low, high, access in new:
            for earlier_writes in (False, True) if access.writes else (True,):
                entries = past[access.memory, earlier_writes]
                met = [entry for entry in entries if low < entry[2] and entry[1] < high]
                later = DRAIN if earlier_writes and not access.writes else END
                for j, _, _, earlier in met:
                    kind = CHAIN if _can_follow(instructions[j], earlier, instructions[i], access) else later
                    kinds[j] = kinds.get(j, 0) | kind
                if access.writes and met:
                    met_by_writes.append((entries, low, high))
        for entries, low, high in met_by_writes:  # later instructions need not wait for accesses wholly within a write
            entries[:] = [entry for entry in entries if entry[1] < low or high < entry[2]]
        for entry in new:
            past[entry[3].memory, entry[3].writes].append(entry)


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


def _can_follow(writer: Instruction, written: Access, reader: Instruction, read: Access) -> bool:
    """Return True if the reader, begun LATENCY cycles after the writer, reads no vector before it is written.

    The same holds for two accesses of other kinds: the second instruction makes no access at an earlier step.
    """
    if written.base != read.base or written.operand is None or read.operand is None:
        return False
    if written.token_offset or read.token_offset or written.memory.kind == OPERANDS:
        return False
    if writer.unit not in (0, M.ENGINE_1, M.VECTOR) or (writer.unit <= M.ENGINE_1 and writer.operation != M.EXPAND):
        return False
    if writer.unit == M.VECTOR and writer.operation == M.COLUMNS:
        return False
    if reader.unit not in (0, M.ENGINE_1, M.VECTOR, M.SHUFFLE) or (reader.unit == M.SHUFFLE and read.writes):
        return False
    loops, others = _loops(written, False), _loops(read, True)
    if [loop[::2] for loop in loops] != [loop[::2] for loop in others]:  # ends and strides
        return False
    # An iteration of an outer loop takes as many steps as its inner loops have.
    return all(_at_least(bound, least) for (_, least, _), (_, bound, _) in zip(loops[1:], others[1:], strict=True))


def set_waits(instructions: Sequence[Instruction], known: Waits, order: Sequence[int] | None = None) -> None:
    """Set every instruction's `after` counts.

    `known`: waits that are the same in every order (`data_waits`).
    `order`: order in which the instructions are sent; by default that of the list.
    """
    order = range(len(instructions)) if order is None else order
    waits, summing = list(known), [i for i in order if uses_sums(instructions[i])]
    for i in summing:
        waits[i] = dict(known[i])
    _add_conflicts(waits, instructions, summing, accesses_of_sums, (0,) * M.OFFSET_TABLES)
    place = [0] * len(instructions)  # position of each in its unit's sequence, from 1
    counts = [0] * M.UNITS
    # Last instruction of each unit that uses a port.
    ports: dict[tuple[Memory, bool], list[int]] = defaultdict(lambda: [0] * M.UNITS)
    for i in order:
        instruction = instructions[i]
        unit = instruction.unit
        counts[unit] += 1
        place[i] = counts[unit]
        end, begin, drain = ([0] * M.UNITS for _ in range(3))
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
        for port in ports_of(instruction):
            users = ports[port]
            users[unit] = place[i]
            end = list(map(max, end, users))
        end[unit] = 0  # a unit takes its instructions in order
        instruction.after_end, instruction.after_begin, instruction.after_drain = end, begin, drain
